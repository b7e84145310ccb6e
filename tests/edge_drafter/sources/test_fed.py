"""A fed head as a source: when it begins, what replaces what, and what it does without features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edge_drafter import Drafter, DraftingConfig, Mode, StepRequest, sources_of
from edge_drafter.controller import Controller
from edge_drafter.sources.fed import FedSource
from edge_drafter.sources.model import ModelSource
from edge_drafter.step import Step
from edge_drafter.tree import Origin, TokenTree
from speculation.cancellation import Abandoned
from speculation.wire import AnyMessage, BeginStep, Commit, Draft, Features, Idle
from tests.edge_drafter.fakes import (
    EOS,
    VOCABULARY,
    FakeClock,
    FakeLink,
    FakeModel,
    NextToken,
    Weather,
    alone,
    hashed_target,
)

DIGEST = b"12345678"
PROMPT_END = [3, 3]
"""Tokens in front of every answer here."""


class FakeFed(FakeModel):
    """Drafts the target's tokens where it was fed up to the root, else the end. Features are one byte a token, 1."""

    def __init__(self, target: NextToken) -> None:
        super().__init__(lambda prefix: target(prefix) if self.fed >= len(self.root) else EOS)
        self.tokens = np.arange(VOCABULARY)
        self.fed = -1
        """Up to which answer position features came."""
        self.taken: list[tuple[list[int], int]] = []

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: object = None) -> None:
        super().begin(prompt, image, committed)
        self.fed = -1

    @property
    def root_is_new(self) -> bool:
        return not self._root_is_fed

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        if packed != b"\1" * len(tokens):
            raise ValueError("features of another size")
        assert list(tokens)[max(0, len(tokens) - end) :] == self.root[max(0, end - len(tokens)) : end]
        self.taken.append((list(tokens), end))
        self.fed = max(self.fed, end)
        self._root_is_fed = False


def begun(target: NextToken, committed: tuple[int, ...] = (), width: int = 2) -> tuple[FedSource, FakeFed, TokenTree]:
    model = FakeFed(target)
    source = FedSource(model)
    request = StepRequest(1, "p", b"j", (EOS,), committed=committed)
    step = Step(DraftingConfig(width=width), request, Controller(None), FakeClock())
    source.begin(step)
    source.read()
    return source, model, step.tree


def commit(start: int, tokens: list[int], packed: bytes | None = None) -> Commit:
    return Commit(1, 0, start, tokens, DIGEST, False, features=b"\1" * len(tokens) if packed is None else packed)


def prompt(position: int = 0, answer: Sequence[int] = ()) -> Features:
    tokens = [*PROMPT_END, *answer]
    return Features(1, position, tokens, b"\1" * len(tokens))


def test_it_begins_when_it_is_fed() -> None:
    target = hashed_target(1)
    source, model, tree = begun(target)
    assert source.announce(BeginStep(1, "p", b"j")).features, "it asks for what it drafts from"
    assert not source.ready and model.forwards == 0
    source.feed(prompt())
    assert source.ready and model.taken == [], "not while a forward may run"
    source.grow([tree.root])
    assert model.taken == [(PROMPT_END, 0)] and tree[tree.root].proposals is not None
    assert tree[tree.likeliest_path(tree.root, 1)[0]].token == target([])


def test_without_the_prompts_end_it_begins_with_the_first_commit() -> None:
    source, model, tree = begun(hashed_target(1))
    source.commit(tree.reroot([4]), commit(0, [4]))
    assert source.ready
    source.grow([tree.root])
    assert model.taken == [([4], 1)]
    assert tree[tree.root].proposals is not None


def test_features_that_are_late_come_in_front() -> None:
    source, model, tree = begun(hashed_target(1))
    source.feed(prompt())
    source.commit(tree.reroot([4]), commit(0, [4]))
    source.grow([tree.root])
    assert model.taken == [(PROMPT_END, 0), ([4], 1)] and model.fed == 1


def test_the_roots_children_are_rated_anew_with_the_targets_feature() -> None:
    """Before: the fake's own view, which is the end. After: the target's token, beside what was there."""
    target = hashed_target(2, eos_rate=0.0)
    source, model, tree = begun(target, width=1)
    source.feed(prompt())
    source.grow([tree.root])
    first = tree.likeliest_path(tree.root, 1)[0]
    model.fed = -1  # what stands behind the first token is drafted without its feature
    source.grow([first])
    named = tree.raise_branch(first, 5, 0.9, layer=1)
    source.commit(tree.reroot([tree[first].token]), commit(0, [tree[first].token], b""))
    before = {token: tree[node].chance for token, node in tree[tree.root].children.items()}
    right = target(model.root)
    assert set(before) == {EOS, 5} and right not in before
    source.feed(prompt(1, [tree[tree.root].token]))
    source.grow([named])
    deeper = tree.likeliest_path(named, 1)[0]
    forwards = model.forwards
    source.grow([deeper])
    after = {token: tree[node].chance for token, node in tree[tree.root].children.items()}
    assert after[right] == pytest.approx(np.exp(3) / (np.exp(3) + 7))
    assert after[EOS] == pytest.approx(1 / (np.exp(3) + 7)) != before[EOS], "what was drafted is rated by the new view"
    assert after[5] == before[5], "what an exit named is not rated down"
    assert (tree[tree.root].proposals or ())[0][0] == right
    assert model.forwards == forwards + 1, "the root rides along"


def test_features_wait_where_they_would_double_a_forward() -> None:
    """A child of the root needs the root's new output, one level more; other leaves share a level with the root."""
    source, model, tree = begun(hashed_target(3, eos_rate=0.0))
    source.feed(prompt())
    source.grow([tree.root])
    first = tree.likeliest_path(tree.root, 1)[0]
    source.grow([first])
    source.commit(tree.reroot([tree[first].token]), commit(0, [tree[first].token]))
    children = list(tree[tree.root].children.values())
    assert tree[tree.root].proposals is not None and len(children) == 2
    source.grow(children[:1])
    assert model.taken == [(PROMPT_END, 0)] and tree[children[0]].proposals is not None
    deeper = tree.likeliest_path(children[0], 1)[0]
    source.grow([deeper, children[1]])
    assert len(model.taken) == 2 and tree[deeper].proposals is not None
    assert tree[children[1]].proposals is None, "the less likely child waits in its turn"
    source.grow([children[1]])
    assert tree[children[1]].proposals is not None


def test_a_forward_feeds_one_level_of_what_others_proposed() -> None:
    """A draft model takes a looked-up chain at once; to a head each of its tokens is a forward of its own."""
    source, _, tree = begun(hashed_target(3, eos_rate=0.0))
    source.feed(prompt())
    source.grow([tree.root])
    chain, node = [], tree.root
    for token in (4, 5, 6):
        node = tree.add(node, token, 0.9, Origin.LOOKUP)
        chain.append(node)
    for fed in range(1, 4):
        source.grow([chain[-1]])
        assert [tree[each].proposals is not None for each in chain] == [True] * fed + [False] * (3 - fed)


def test_tokens_outside_the_short_list_are_neither_proposed_nor_rated() -> None:
    """What a look-up proposed keeps its chance where the head does not know the token."""
    target = hashed_target(2, eos_rate=0.0)
    for token, listed in ((1, True), (4, False)):
        model = FakeFed(target)
        model.tokens = np.array([0, 1, 2, 7])
        source = FedSource(model)
        step = Step(DraftingConfig(width=6), StepRequest(1, "p", b"j", (EOS,)), Controller(None), FakeClock())
        source.begin(step)
        source.read()
        tree = step.tree
        node = tree.add(tree.root, token, 0.4, Origin.LOOKUP)
        source.feed(prompt())
        source.grow([tree.root])
        assert (tree[node].chance != 0.4) == listed
        proposals = dict(tree[tree.root].proposals or ())
        assert set(proposals) == {0, 1, 2, 7} and sum(proposals.values()) == pytest.approx(1.0)


def test_features_that_do_not_fit_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    source, model, tree = begun(hashed_target(1))
    source.feed(Features(1, 0, PROMPT_END, bytes(4)))
    with pytest.raises(Abandoned):
        source.grow([tree.root])
    assert not source.ready, "nothing is known yet"
    source.commit(tree.reroot([4]), commit(0, [4], bytes(3)))
    source.grow([tree.root])
    assert model.taken == [] and tree[tree.root].proposals is not None
    assert caplog.text.count("features of the target are left out") == 1


def test_a_new_step_forgets_what_the_old_one_was_fed() -> None:
    source, _, _ = begun(hashed_target(1))
    source.feed(prompt())
    source.begin(Step(DraftingConfig(), StepRequest(2, "p", b"j", (EOS,)), Controller(None), FakeClock()))
    assert not source.ready


@pytest.mark.parametrize("mode", Mode)
def test_it_takes_the_draft_models_place_wherever_a_verifier_feeds_it(mode: Mode) -> None:
    config, model = DraftingConfig.of(mode), FakeModel(hashed_target(1))
    kinds = {type(each) for each in sources_of(config, model, fed=FakeFed(hashed_target(1)))}
    assert (FedSource in kinds) == mode.drafts
    assert (ModelSource in kinds) == (mode is Mode.EDGE)


class FeedingLink(FakeLink):
    """A verifier that sends features, or none of the prompt's."""

    def __init__(self, target: NextToken, clock: FakeClock, weather: Weather, prompts: bool = True) -> None:
        super().__init__(target, clock, weather)
        self._prompts = prompts

    def _deliver(self, payload: bytes) -> None:
        super()._deliver(payload)
        message = self._inbox[-1]
        if isinstance(message, Commit):
            self._inbox[-1] = Commit(**{name: getattr(message, name) for name in message.__struct_fields__}
                                     | {"features": b"\1" * len(message.tokens)})  # fmt: skip

    def _serve(self, message: AnyMessage, now: float) -> None:
        if isinstance(message, BeginStep) and self._prompts:
            self._reply(prompt(len(message.committed), message.committed), now)
        super()._serve(message, now)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.drafts and mode is not Mode.EDGE])
@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize("committed", [(), (1, 2)])
def test_a_whole_answer(mode: Mode, prompts: bool, committed: tuple[int, ...]) -> None:
    """Fed drafts are always right here, so that all of them are accepted; a lost prompt costs one wait at most."""
    clock, target = FakeClock(), hashed_target(3, eos_rate=0.0)
    config = DraftingConfig.of(mode, ngrams=False)
    link = FeedingLink(target, clock, Weather(verify_s=0.05, one_way_s=0.01), prompts)
    drafter = Drafter(sources_of(config, None, fed=FakeFed(target)), link, config, clock)
    result = drafter.run(StepRequest(1, "p", b"j", (EOS,), 20, committed=committed))
    assert result.tokens == alone(target, 20, committed)
    waits = config.idle is Idle.WAIT and not prompts
    assert result.stats.resent == waits
    assert result.stats.accepted >= 12
    drafts = [message for _, message in link.sent if isinstance(message, Draft)]
    assert all(draft.tokens for draft in drafts[waits:])
