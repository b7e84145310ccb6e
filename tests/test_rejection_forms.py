"""Rejection sampling through the whole system: the textbook's algorithm, token by token, and the target's distribution.

The first half runs production's edge and verifier with tiny models in float64 and holds every answer against
Leviathan's Algorithm 1, written down plainly with the same random numbers. The second half draws thousands of answers
over a vocabulary of eight and holds their frequencies against the target's distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from cloud_verifier.step import Step
from cloud_verifier.tree import Tree
from edge_drafter import Drafter, DraftingConfig, DraftModel, Mode, StepRequest, sources_of
from speculation.acceptance import Verdict
from speculation.cancellation import Stop
from speculation.language.grammar import masked
from speculation.sampling import MAX_KEY, Distribution, Point, SamplingScheme, Sparse, Split, Whole
from speculation.sampling.rejection import Purpose, draw, draw_rest, noisy, uniform
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import AnyMessage, BeginStep, Commit, Features, begin_digest, extend_digest
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import EOS, VOCABULARY, FakeClock, FakeLink, FakeModel, Weather
from tests.pair import CAPACITY, Robot, run
from tests.test_exactness import PENALTIES, Pair, grammars, noisy_exits, pairs

__all__ = ["pairs"]
WHOLE, SPLIT = Whole(0.9), Split(0.9)
SPARSE = Sparse(0.9, keep=2)
POINT = Point(0.9)


def chain(mode: Mode, **changes: object) -> DraftingConfig:
    """Return a mode that drafts one chain at a time."""
    return DraftingConfig.of(mode, **{"width": 1, "draft_tokens": 0, **changes})


def textbook(target: Vlm, draft: Vlm, request: StepRequest, gamma: int) -> tuple[int, ...]:
    """Return the answer by Algorithm 1 of arXiv 2211.17192, each model asked for one token after another.

    The draft model gets the target's repetition penalty, behind the words of its prompt.
    """
    how, factor = request.sampling, target.repetition_penalty

    def source(vlm: Vlm, answer: Sequence[int]) -> Distribution:
        session = VlmSession(vlm, CAPACITY)
        session.begin(request.prompt, request.jpeg, answer)
        row, grammar = session.root_logits(), request.grammar
        read = prepare(vlm, request.prompt, request.jpeg if vlm is target else None).ids
        seen = sorted({*read.tolist(), *answer})
        row = row.copy()
        row[seen] = [value * factor if value < 0.0 else value / factor for value in row[seen].tolist()]
        if grammar is not None and (state := grammar.after(answer, request.max_tokens)) is not None:
            (row,) = masked(row[None], [grammar.allowed(state).mask])
        return Distribution.of(row, how)

    answer: list[int] = []
    digest = begin_digest(request.prompt, request.jpeg, how.text, request.key, request.grammar_name)
    while len(answer) < request.max_tokens and not (answer and answer[-1] in request.eos):
        most = min(gamma, request.max_tokens - len(answer) - 1)
        for place in range(most + 1):
            p = source(target, answer)
            last = place == most
            if last:
                token = draw(p.row, digest)[0]
            else:
                q = source(draft, answer)
                token = int(np.argmax(noisy(q.row, digest, Purpose.DRAFT)))
                last = uniform(digest, Purpose.ACCEPT) * q.row[token] >= p.row[token]
                if last:
                    token = draw_rest(p, q, digest, how.keep if isinstance(how, Sparse) else 0)
            answer.append(token)
            digest = extend_digest(digest, [token])
            if last or token in request.eos:
                break
    return tuple(answer)


@settings(
    deadline=None, max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_every_answer_is_the_textbooks(pairs: list[Pair], data: st.DataObject) -> None:
    pair = pairs[data.draw(st.integers(0, len(pairs) - 1), label="pair")]
    target, draft = pair.target, pair.drafts[data.draw(st.integers(0, 1), label="draft")]
    how = data.draw(st.sampled_from([WHOLE, SPLIT, SPARSE, Sparse(0.9, top_k=20, keep=5)]), label="sampling")
    gamma = data.draw(st.integers(1, 4), label="gamma")
    request = StepRequest(
        1, PROMPTS[0], jpeg(data.draw(st.integers(0, 9))), target.eos, data.draw(st.integers(1, 10)), sampling=how,
        key=data.draw(st.integers(0, MAX_KEY)),
        grammar=data.draw(st.sampled_from([None, *grammars(target)]), label="grammar"),
    )  # fmt: skip
    target = replace(target, repetition_penalty=data.draw(PENALTIES, label="penalty"))
    config = chain(
        data.draw(st.sampled_from([Mode.SD, Mode.FSD, Mode.PROACTIVE]), label="mode"), gamma=gamma,
        interrupt=data.draw(st.booleans()),
    )  # fmt: skip
    weather = Weather(
        one_way_s=data.draw(st.sampled_from([0.0, 0.2])), jitter_s=data.draw(st.sampled_from([0.0, 0.4])),
        duplicates=data.draw(st.sampled_from([0.0, 0.3])), losses=data.draw(st.sampled_from([0.0, 0.1])),
        cut_after=data.draw(st.one_of(st.none(), st.integers(1, 12))), seed=data.draw(st.integers(0, 99)),
    )  # fmt: skip
    robot = Robot(draft, config, [request], weather, resumes=data.draw(st.booleans()))
    run(target, [robot], exits=noisy_exits(target, 0.9))
    assert robot.answers == [textbook(target, draft, request, gamma)]


@pytest.mark.parametrize("how", [SPLIT, SPARSE], ids=lambda how: how.name)
def test_what_the_edge_draws_survives_a_bad_link(how: SamplingScheme, pairs: list[Pair]) -> None:
    target, draft = pairs[0].target, pairs[0].drafts[0]
    requests = [StepRequest(step, PROMPTS[1], jpeg(3), target.eos, 16, sampling=how, key=step) for step in (1, 2)]
    bad = Weather(one_way_s=0.05, jitter_s=0.2, duplicates=0.2, losses=0.1, cut_after=4, seed=1)
    robots = [
        Robot(draft, chain(Mode.FSD), requests, weather, resumes=resumes)
        for weather, resumes in ((Weather(), True), (bad, True), (bad, False))
    ]
    answers = [textbook(target, draft, request, 4) for request in requests]
    for robot in robots:
        run(target, [robot], exits=noisy_exits(target, 0.9))
        assert robot.answers == answers
    assert robots[1].stats.interruptions > 0 and robots[1].stats.resent > 0
    if how is SPARSE:
        assert robots[0].stats.fetches > 0


# --- frequencies

LENGTH = 3
SAMPLES = 300


def table(seed: int, spread: float) -> Callable[[Sequence[int]], npt.NDArray[np.floating]]:
    """Return a model over three of the tokens: fixed random logits after every prefix."""
    known: dict[tuple[int, ...], npt.NDArray[np.floating]] = {}

    def logits(prefix: Sequence[int]) -> npt.NDArray[np.floating]:
        key = tuple(prefix)
        if key not in known:
            row = np.full(VOCABULARY, -60.0)
            row[:3] = np.random.default_rng([seed, *key]).normal(0.0, spread, 3)
            known[key] = row
        return known[key]

    return logits


TARGET, DRAFT, EXIT, FED = table(1, 1.0), table(2, 1.2), table(3, 1.0), table(4, 1.2)


class TableModel(FakeModel):
    """The draft, with logits of its own table."""

    def _logits(self, prefix: Sequence[int]) -> npt.NDArray[np.floating]:
        return DRAFT(prefix)


class TableHead(TableModel):
    """A fed head whose short list lacks one of the target's tokens; behind a feature it has logits of another table."""

    tokens = np.array([0, 1])

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        self._featured: set[int] = set()
        super().begin(prompt, image, committed, stop)

    @property
    def root_is_new(self) -> bool:
        return not self._root_is_fed

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        self._featured.update(range(end - len(tokens), end))
        if end >= len(self.root):
            self._root_is_fed = False

    def _logits(self, prefix: Sequence[int]) -> npt.NDArray[np.floating]:
        row = (FED if len(prefix) - 1 in self._featured else DRAFT)(prefix).copy()
        row[2:] = -np.inf
        return row


class TableLink(FakeLink):
    """A verifier whose target and exits are tables; who asks for features gets a byte with every token."""

    def _serve(self, message: AnyMessage, now: float) -> None:
        super()._serve(message, now)
        if isinstance(message, BeginStep) and message.features:
            self._reply(Features(message.step, 0, [0], bytes(1)), now)

    def _reply(self, message: AnyMessage, now: float) -> None:
        if isinstance(message, Commit) and self.begun[-1].features:
            message = msgspec.structs.replace(message, features=bytes(len(message.tokens)))
        super()._reply(message, now)

    def judge(self, state: Step, tree: Tree) -> Verdict:
        return self._by(TARGET, state, tree, early=False)

    def early_verdict(self, state: Step, tree: Tree, verdict: Verdict, layer: int) -> Verdict:
        return self._by((EXIT, TARGET)[layer % 2], state, tree, early=True)

    def _by(
        self, model: Callable[[Sequence[int]], npt.NDArray[np.floating]], state: Step, tree: Tree, early: bool
    ) -> Verdict:
        prefixes = [list(state.answer.tokens)]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            prefixes.append([*prefixes[parent + 1], token])
        assert state.row is not None
        return state.row.rule(early).judge(
            tree.tokens, tree.parents, np.stack([model(each) for each in prefixes]), state.row.draws
        )


def answers(
    config: DraftingConfig,
    how: SamplingScheme,
    exits: int,
    fed: bool = False,
    length: int = LENGTH,
    samples: int = SAMPLES,
) -> Counter[tuple[int, ...]]:
    """Draw many answers, each with a key of its own."""
    found: Counter[tuple[int, ...]] = Counter()
    clock = FakeClock()
    model: DraftModel = TableModel(lambda prefix: 0, clock, 0.05)
    link = TableLink(lambda prefix: 0, clock, Weather(exits=exits, sampling=how))
    head = TableHead(lambda prefix: 0, clock, 0.05) if fed else None
    drafter = Drafter(sources_of(config, model, fed=head), link, config, clock)
    for key in range(samples):
        result = drafter.run(StepRequest(key + 1, "find it", b"jpeg", (EOS,), length, sampling=how, key=key))
        found[result.tokens] += 1
    return found


def expected(how: SamplingScheme, length: int = LENGTH) -> dict[tuple[int, ...], float]:
    """Return the target's probability of every answer."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        rows = {tokens: Distribution.of(TARGET(tokens), how).row for tokens in chances}
        chances = {(*tokens, each): chance * float(rows[tokens][each])
                   for tokens, chance in chances.items() for each in range(3)}  # fmt: skip
    return chances


def p_value(found: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> float:
    """Return how likely frequencies at least so far from these probabilities are (chi-square)."""
    assert set(found) <= set(chances)
    total = sum(found.values())
    return float(chisquare([found[each] for each in chances], [total * chance for chance in chances.values()]).pvalue)


@dataclass(frozen=True)
class Case:
    config: DraftingConfig
    how: SamplingScheme
    exits: int = 0
    fed: bool = False


CASES = {
    f"{how.name}, {name}": Case(config, how, exits)
    for how in (WHOLE, SPLIT, SPARSE)
    for name, config, exits in (
        ("sd", chain(Mode.SD, gamma=2), 0),
        ("fsd, early exits", chain(Mode.FSD, gamma=2), 3),
    )
} | {
    "point, linear": Case(chain(Mode.SD, gamma=2), POINT),
    "point, tree": Case(DraftingConfig.of(Mode.PROACTIVE, gamma=2), POINT),
    "point, tree, early exits": Case(DraftingConfig.of(Mode.PROACTIVE, gamma=2, early_tokens=True), POINT, 3),
    "split, sd, fed head": Case(chain(Mode.SD, gamma=2), SPLIT, fed=True),
    "split, proactive chain, early exits": Case(chain(Mode.PROACTIVE, gamma=1, early_tokens=True), SPLIT, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_samples_of_the_target(name: str) -> None:
    case = CASES[name]
    assert p_value(answers(case.config, case.how, case.exits, case.fed), expected(case.how)) > 1e-3


def test_features_that_come_behind_a_draft_do_not_change_what_it_was_sampled_from() -> None:
    """Pre-drafts are sent before the features of their place are fed. Compared are answers' second to fourth tokens."""
    length = 6
    found: Counter[tuple[int, ...]] = Counter()
    chances: dict[tuple[int, ...], float] = {}
    for tokens, count in answers(
        chain(Mode.PROACTIVE, gamma=1), SPLIT, 0, fed=True, length=length, samples=300
    ).items():
        found[tokens[1:4]] += count
    for tokens, chance in expected(SPLIT, length).items():
        chances[tokens[1:4]] = chances.get(tokens[1:4], 0.0) + chance
    assert p_value(found, chances) > 1e-3


def test_the_check_finds_a_rule_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing what follows a rejection from p itself, not from what q leaves of it."""
    monkeypatch.setattr(
        "speculation.sampling.split.draw_rest", lambda target, source, digest, keep=0: draw(target.row, digest)[0]
    )
    assert p_value(answers(chain(Mode.SD, gamma=2), SPLIT, 0), expected(SPLIT)) < 1e-6
