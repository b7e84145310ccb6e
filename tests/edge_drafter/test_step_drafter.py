"""What the edge does while a verification runs: sends ahead, begins early, gives up, takes early tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from edge_drafter import DraftingConfig, Mode, sources_of
from edge_drafter.answer import Answer
from edge_drafter.step_drafter import MOST_NAMED, ResidualTokens, StepDrafter
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.sampling import DraftSampler, Split
from speculation.trace import Kind
from speculation.wire import ROOT, AnyMessage, Commit, Draft, EarlyTokens, Fetch, Masses, begin_digest, extend_digest
from tests.edge_drafter.fakes import (
    DRAFT_S,
    EOS,
    WEATHERS,
    Bench,
    FakeClock,
    FakeLink,
    FakeModel,
    NextToken,
    Weather,
    alone,
    counting,
    hashed_draft,
    hashed_target,
    lone_step,
    patient,
    request,
)

PIPELINE = DraftingConfig.of("pipelined", partial=False, preverify=False, truncate=False, interrupt=False)


def test_a_draft_that_leaves_before_the_commit_that_it_follows_costs_no_bubble() -> None:
    """Commits come a verification apart: neither drafting nor the way lies between them."""
    bench = Bench(counting(99), counting(99), Weather(), PIPELINE)
    stats = bench.run(request(max_tokens=20)).stats
    landed = [span.end for span in bench.trace.spans if span.name == Kind.COMMIT.value]
    drafts = bench.drafts
    assert len(drafts) == 4 and all(sent < taken for (sent, _), taken in zip(drafts[1:], landed, strict=False))
    assert [message.start for _, message in drafts] == [0, 5, 10, 15]
    assert (stats.hits, stats.ahead_hits, stats.misses, stats.sent_ahead) == (3, 3, 0, 3)
    assert stats.total_s == pytest.approx(4 * DRAFT_S + 0.1 + 4 * 0.5 + 0.1)
    waits = Bench(counting(99), counting(99), Weather(), replace(PIPELINE, ahead=False)).run(request(max_tokens=20))
    assert waits.stats.total_s == pytest.approx(stats.total_s + 3 * 2 * 0.1)


# --- growing


def test_a_draft_goes_up_in_parts_and_grows_while_its_beginning_is_verified() -> None:
    """PicoSpec's PreVerify: every part of a place goes on as the one before it, and answers take less time."""
    whole, grown = DraftingConfig(), DraftingConfig(preverify=True, send_gain=0.0)
    seconds, parts = dict.fromkeys((whole, grown), 0.0), dict.fromkeys((whole, grown), 0)
    for seed, config in itertools.product(range(6), (whole, grown)):
        target = hashed_target(seed, eos_rate=0.0)
        bench = Bench(target, hashed_draft(target, seed, 0.7), Weather(verify_s=0.3), config, draft_s=0.1)
        result = bench.run()
        assert result.tokens == alone(target, 24)
        seconds[config] += result.stats.total_s
        for (_, first), (_, second) in itertools.pairwise(bench.drafts):
            if first.start == second.start:
                parts[config] += 1
                assert second.tokens[: len(first.tokens)] == first.tokens and len(second.tokens) > len(first.tokens)
    assert parts[whole] == 0 and parts[grown] > 0 and seconds[grown] < 0.95 * seconds[whole]


# --- giving up


class Watched(FakeModel):
    """A model that knows what the edge has received, and refuses a forward for tokens that are decided."""

    link: Watching

    def root_logits(self, stop: Stop | None = None) -> Logits:
        self._fed = [self.root]
        return super().root_logits(stop)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        self._fed = []
        for token, parent in zip(tokens, parents, strict=True):
            self._fed.append([*(self.root if parent == ROOT else [*self.nodes, *self._fed][parent]), token])
        return super().extend(tokens, parents, stop)

    def _pass_time(self, stop: Stop | None) -> None:
        assert self.link.unread == 0, "a forward is started while a message is waiting"
        assert self._is_useful(), "a forward is started that is decided"

        def watched() -> bool:
            assert stop is not None
            gives_up = stop()
            assert self.link.unread == 0, "what came was not read between two layers"
            assert gives_up or self._is_useful(), "a forward goes on that is decided"
            return gives_up

        super()._pass_time(None if stop is None else watched)

    def _is_useful(self) -> bool:
        answer = self.link.answer
        return any(len(fed) >= len(answer) and fed[: len(answer)] == answer for fed in self._fed)


class Watching(FakeLink):
    """A link that knows what was read from it."""

    def __init__(self, target: NextToken, clock: FakeClock, weather: Weather) -> None:
        super().__init__(target, clock, weather)
        self._answer = Answer(request().digest, (EOS,), request().max_tokens)

    @property
    def answer(self) -> list[int]:
        return self._answer.tokens

    @property
    def unread(self) -> int:
        self._run_until(self._clock.now)
        return 0 if self._answer.done else len(self._inbox)

    def receive(self, timeout: float) -> AnyMessage | None:
        message = super().receive(timeout)
        if isinstance(message, Commit):
            self._answer.take(message)
        return message


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from([Mode.SD, Mode.FSD, Mode.PROACTIVE, Mode.PIPELINED, Mode.FULL]),
    interrupt=st.booleans(),
    seed=st.integers(0, 10_000),
    agreement=st.floats(0.0, 1.0),
    weather=WEATHERS,
)
def test_no_forward_is_run_whose_outcome_is_decided(
    mode: Mode, interrupt: bool, seed: int, agreement: float, weather: Weather
) -> None:
    """None is started, and with interrupts none goes on past the layer in which a commit makes it useless."""
    target = hashed_target(seed)
    config = patient(mode, interrupt=interrupt)
    bench = Bench(target, hashed_draft(target, seed, agreement), weather, config, Watched, Watching)
    bench.model.link = bench.link
    assert bench.run().tokens == alone(target, 24)


class World:
    """A step's drafter without the loop: messages arrive when a test passes them on."""

    def __init__(self, config: DraftingConfig) -> None:
        self.step = lone_step(config)
        self.drafter = StepDrafter(self.step, sources_of(config, FakeModel(counting(99))))
        self.drafter.begin()
        self.drafter.read()
        self.drafter.has_read()

    def sent(self) -> Draft:
        """Draft until something is due, and send it."""
        while (anchor := self.drafter.policy.next_draft()) is None:
            self.drafter.grow(self.drafter.policy.next_leaves())
        return self.drafter.send_draft(anchor)

    def early(self, draft: Draft, node: int, token: int, confidence: float) -> EarlyTokens:
        return EarlyTokens(1, draft.round, 1 + node, node, token, 2, confidence)

    def commit(self, draft: Draft, tokens: list[int]) -> Commit:
        digest = extend_digest(begin_digest("p", b"j"), [*self.step.answer.tokens, *tokens])
        return Commit(1, draft.round, self.step.answer.position, tokens, digest, False, compute_s=0.5)


# --- early tokens and earlier answers


def test_exits_that_name_thousands_of_tokens_do_not_fill_the_tree() -> None:
    world = World(DraftingConfig.of("fsd"))
    draft = world.sent()
    before = len(world.step.tree)
    taken = sum(world.drafter.take_early_token(world.early(draft, 0, token, 0.5)) for token in range(5000))
    assert 0 < taken <= MOST_NAMED and len(world.step.tree) <= before + MOST_NAMED
    world.drafter.take_commit(*world.step.answer.take(world.commit(draft, [*draft.tokens, 6]))[0], now=1.0, since_s=1.0)
    assert len(world.step.tree) < 10, "with the commit they are gone"


@pytest.mark.parametrize("order", ["confidence", "priority"])
def test_branches_go_by_what_the_exit_says_alone_or_by_what_the_draft_knows_too(order: str) -> None:
    world = World(DraftingConfig.of("fsd", f"queue_policy={order},branches=1,leaves=1"))
    draft = world.sent()
    for node, token, confidence in ((2, draft.tokens[3], 0.45), (0, 50, 0.4)):
        assert world.drafter.take_early_token(world.early(draft, node, token, confidence))
    (leaf,) = world.drafter.policy.next_leaves()
    # The draft doubts that its last token is reached, which makes the first verdict the less likely one.
    assert (world.step.tree[leaf].token == 50) is (order == "priority")


def test_earlier_answers_propose_a_draft_that_costs_no_forward_and_travel_as_hints() -> None:
    """A draft model that is always wrong: the second time, the first answer is sent before any forward."""

    def wrong(prefix: Sequence[int]) -> int:
        return (counting(12)(prefix) + 1) % EOS

    bench = Bench(counting(12), wrong, Weather(), DraftingConfig.of("sd", ngrams=True))
    first = bench.run(request(1))
    forwards = bench.model.forwards
    again = bench.clock.now
    second = bench.run(request(2))
    assert first.tokens == second.tokens == alone(counting(12), 24)
    (sent, message), *_ = [(at, each) for at, each in bench.drafts if each.step == 2]
    assert sent == again and message.tokens == list(first.tokens[:4])
    assert [begun.hints for begun in bench.link.begun] == [[], [list(first.tokens)]]
    assert second.stats.accepted > first.stats.accepted == 0 and second.stats.rounds < first.stats.rounds
    assert bench.model.forwards - forwards < forwards
    plain = Bench(counting(12), wrong, Weather(), DraftingConfig.of("sd"))
    assert plain.run(request(1)).stats.rounds == plain.run(request(2)).stats.rounds == first.stats.rounds
    assert [begun.hints for begun in plain.link.begun] == [[], []]


# --- tokens that commits leave to the edge


class Sampling(DraftSampler):
    """Samples what a test sets: a token, or None for one that needs the tail of the distribution."""

    token: int | None = None

    def finish(self, digest: bytes, rest: Masses) -> int | None:
        return self.token


def test_a_token_that_needs_the_tail_is_fetched_once_and_its_commit_waits() -> None:
    step, sampler = lone_step(max_tokens=8, sampling=Split(1.0)), Sampling()
    residual, answer = ResidualTokens(sampler, step), step.answer
    left = Commit(1, 1, 0, [1], extend_digest(answer.digest, [1]), False, rest=Masses(b"", 1.0))
    ((commit, new),) = answer.take(left)
    for tokens in (new, []):
        assert residual.complete(commit, tokens) == Fetch(1, 1, answer.digest)
    assert step.stats.fetches == 1, "the same place, asked for twice"
    sampler.token = 3
    assert residual.complete(commit, []) == [1, 3] and answer.tokens == [1, 3] and residual.sampled_last
    answer.append([6])
    assert not residual.sampled_last
