"""A world without torch, sockets and waiting: hash-made models, a clock that is set by hand, a link that misbehaves.

`Bench` joins them with a drafter.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from cloud_verifier.choice import Act, Choice
from cloud_verifier.step import Step
from cloud_verifier.tree import NOTHING, Tree
from edge_drafter import Drafter, DraftingConfig, LinkLost, Mode, StepRequest, StepResult, sources_of
from edge_drafter.acceptance_stats import AcceptanceStats
from edge_drafter.question import Question
from edge_drafter.step import Step as DraftedStep
from speculation.acceptance import Verdict
from speculation.cancellation import Abandoned, Stop
from speculation.predictor import Predictor
from speculation.sampling import GREEDY, SamplingScheme
from speculation.trace import Trace
from speculation.wire import ROOT, AnyMessage, BeginStep, Draft, EarlyTokens, EndStep, Fetch, decode, encode
from tests.cloud_verifier.steps import prefilled, step_of

VOCABULARY = 8
EOS = 7
LAYERS = 4
DRAFT_S = 0.05
NextToken = Callable[[Sequence[int]], int]


def hashed_target(seed: int, eos_rate: float = 0.05) -> NextToken:
    """Return a deterministic model: the next token is a hash of the last three; now and then it is the end."""

    def following(prefix: Sequence[int]) -> int:
        key = repr((seed, len(prefix), tuple(prefix[-3:]))).encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        return EOS if (number >> 16) % 10_000 < eos_rate * 10_000 else number % EOS

    return following


def hashed_draft(target: NextToken, seed: int, agreement: float) -> NextToken:
    """Return a model that says what `target` says in `agreement` of the cases."""
    other = hashed_target(seed + 1_000_003)

    def following(prefix: Sequence[int]) -> int:
        key = repr((seed, tuple(prefix))).encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        return target(prefix) if number % 10_000 < agreement * 10_000 else other(prefix)

    return following


def alone(model: NextToken, max_tokens: int, committed: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the greedy answer of a model by itself."""
    tokens = list(committed)
    while len(tokens) < max_tokens and (not tokens or tokens[-1] != EOS):
        tokens.append(model(tokens))
    return tuple(tokens)


class FakeClock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeModel:
    """A draft model that keeps whole prefixes instead of a cache, and checks every id that it is given.

    `sureness` says, for a prefix, how far its likeliest token's logit stands above the others, which are 0. A prefill
    takes `prefill` layers of half a second each.
    """

    def __init__(
        self,
        following: NextToken,
        clock: FakeClock | None = None,
        draft_s: float = 0.0,
        sureness: Callable[[Sequence[int]], float] = lambda prefix: 3.0,
        prefill: int = 0,
    ) -> None:
        self._following = following
        self._prefill = prefill
        self._sureness = sureness
        self._clock = clock
        self._draft_s = draft_s
        self.root: list[int] = []
        self.nodes: list[list[int]] = []
        self.forwards = 0
        self.most_fed = 0
        self.begun = 0
        self._root_is_fed = False

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        self.root, self.nodes = list(committed), []
        self._root_is_fed = False
        self.begun += 1
        for layer in range(max(1, self._prefill)):
            if self._clock is not None and layer < self._prefill:
                self._clock.now += 0.5
            if stop is not None and stop():
                raise Abandoned

    def root_logits(self, stop: Stop | None = None) -> npt.NDArray[np.floating]:
        if not self._root_is_fed:
            self._pass_time(stop)
        self._root_is_fed = True
        return self._logits(self.root)

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None
    ) -> npt.NDArray[np.floating]:
        self._pass_time(stop)
        self._root_is_fed = True
        self.most_fed = max(self.most_fed, len(tokens))
        for token, parent in zip(tokens, parents, strict=True):
            assert ROOT <= parent < len(self.nodes), "unknown parent"
            prefix = [*(self.root if parent == ROOT else self.nodes[parent]), token]
            assert prefix not in self.nodes, "fed twice"
            self.nodes.append(prefix)
        return np.stack([self._logits(prefix) for prefix in self.nodes[-len(tokens) :]])

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        end = self.root
        for node in path:
            assert self.nodes[node][:-1] == end, "no chain"
            end = self.nodes[node]
        self.root = [*end, next_token]
        kept = [i for i, node in enumerate(self.nodes) if node[: len(self.root)] == self.root]
        survivors = [i for i in kept if len(self.nodes[i]) > len(self.root)]
        renamed = {i: ROOT for i in kept if i not in survivors} | {i: new for new, i in enumerate(survivors)}
        self.nodes = [self.nodes[i] for i in survivors]
        self._root_is_fed = ROOT in renamed.values()
        return renamed

    def _pass_time(self, stop: Stop | None) -> None:
        self.forwards += 1
        for _ in range(LAYERS):
            if self._clock is not None:
                self._clock.now += self._draft_s / LAYERS
            if stop is not None and stop():
                raise Abandoned

    def _logits(self, prefix: Sequence[int]) -> npt.NDArray[np.floating]:
        row = np.zeros(VOCABULARY)
        row[self._following(prefix)] = self._sureness(prefix)
        return row


@dataclass
class Weather:
    """What the link and the verifier do: seconds, and rates from 0 to 1."""

    verify_s: float = 0.5
    one_way_s: float = 0.1
    jitter_s: float = 0.0
    duplicates: float = 0.0
    losses: float = 0.0
    exits: int = 0
    wrong_exits: float = 0.0
    cut_after: int | None = None
    seed: int = 0
    eos: tuple[int, ...] = field(default=(EOS,))
    sampling: SamplingScheme = GREEDY

    def delay(self, dice: random.Random) -> float:
        """Return how long a message is on its way."""
        return self.one_way_s + dice.random() * self.jitter_s

    def copies(self, dice: random.Random) -> int:
        """Return how often a message arrives."""
        draw = dice.random()
        if draw < self.losses:
            return 0
        return 2 if draw < self.losses + self.duplicates else 1


class FakeLink:
    """Link and verifier on a fake clock. Delays are random, so messages overtake each other; some come twice or never.

    `cut_after` messages down, the link is lost until `mend` is called.
    """

    def __init__(self, target: NextToken, clock: FakeClock, weather: Weather) -> None:
        self._target = target
        self._clock = clock
        self._weather = weather
        self._random = random.Random(weather.seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()
        self._inbox: list[AnyMessage] = []
        self._state: Step | None = None
        self._busy = False
        self._delivered = 0
        self.lost, self.why = False, LinkLost("the verifier is gone")
        self.rtt_s: float | None = None
        self.bytes_up = 0
        self.bytes_down = 0
        self.sent: list[tuple[float, AnyMessage]] = []
        self.begun: list[BeginStep] = []

    def mend(self) -> None:
        """Reconnect to a verifier that forgot everything."""
        self.lost, self._state, self._busy = False, None, False
        self._events.clear()
        self._inbox.clear()
        self._weather.cut_after = None

    def send(self, message: AnyMessage) -> None:
        if self.lost:
            raise self.why
        self._run_until(self._clock.now)
        payload = encode(message)
        self.bytes_up += len(payload)
        self.sent.append((self._clock.now, message))
        if isinstance(message, BeginStep):
            self._at(self._clock.now + self._weather.one_way_s, lambda now: self._serve(decode(payload), now))
            return
        for _ in range(self._weather.copies(self._random)):
            self._at(self._clock.now + self._weather.delay(self._random), lambda now: self._serve(decode(payload), now))

    def receive(self, timeout: float) -> AnyMessage | None:
        deadline = self._clock.now + timeout
        self._run_until(self._clock.now)
        while not self._inbox and not self.lost and self._events and self._events[0][0] <= deadline:
            self._clock.now = max(self._clock.now, self._events[0][0])
            self._run_until(self._clock.now)
        if self.lost:
            raise self.why
        if self._inbox:
            return self._inbox.pop(0)
        self._clock.now = max(self._clock.now, deadline)
        return None

    def _run_until(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            time, _, action = heapq.heappop(self._events)
            action(time)

    def _at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), action))

    def _serve(self, message: AnyMessage, now: float) -> None:
        if isinstance(message, BeginStep):
            self.begun.append(message)
            self._state = prefilled(step_of(message, self._weather.eos, self._weather.sampling), now)
        elif isinstance(message, Draft) and self._state is not None and message.step == self._state.number:
            drawn = self._weather.sampling.read(message, VOCABULARY)
            for commit in self._state.offer(message, now, drawn):
                self._reply(commit, now)
        elif isinstance(message, Fetch) and self._state is not None and message.step == self._state.number:
            for commit in self._state.fetch(message):
                self._reply(commit, now)
        elif isinstance(message, EndStep) and self._state is not None and message.step == self._state.number:
            self._state = None
        self._verify_if_ready(now)

    def _verify_if_ready(self, now: float) -> None:
        state = self._state
        if state is None or self._busy or not state.free or state.awaits_draft:
            return
        self._busy = True
        tree = state.drafts.best or NOTHING
        row = state.start(Choice(Act.VERIFY, tree), now)
        verdict = self.judge(state, tree)
        for layer in range(self._weather.exits if row.exits else 0):
            part = (layer + 1) / (self._weather.exits + 1)
            early = self._early(state, tree, self.early_verdict(state, tree, verdict, layer), layer)
            self._at(now + part * self._weather.verify_s, partial(self._reply, early))
        self._at(now + self._weather.verify_s, lambda at: self._verified(state, verdict, at))

    def _verified(self, state: Step, verdict: Verdict, now: float) -> None:
        self._busy = False
        if state is self._state:
            self._reply(state.accept(verdict, now, self._weather.verify_s), now)
        self._verify_if_ready(now)

    def judge(self, state: Step, tree: Tree) -> Verdict:
        """Return the target's verdict on a tree."""
        path: list[int] = []
        prefix = list(state.answer.tokens)
        while True:
            token = self._target(prefix)
            node = path[-1] if path else ROOT
            found = [n for n, parent in enumerate(tree.parents) if parent == node and tree.tokens[n] == token]
            if not found:
                return Verdict(tuple(path), token, 1.0)
            path.append(found[0])
            prefix.append(token)

    def early_verdict(self, state: Step, tree: Tree, verdict: Verdict, layer: int) -> Verdict:
        """Return what an exit takes the verdict for."""
        return verdict

    def _early(self, state: Step, tree: Tree, verdict: Verdict, layer: int) -> EarlyTokens:
        node, token = tree.nodes[verdict.path[-1]] if verdict.path else tree.origin, verdict.token
        confidence = 0.5 + self._random.random() / 2
        if self._random.random() < self._weather.wrong_exits:
            node = self._random.choice([tree.origin, *tree.nodes])
            token = self._random.randrange(VOCABULARY)
        return EarlyTokens(state.number, tree.round, state.answer.position, node, token, layer, confidence)

    def _reply(self, message: AnyMessage, now: float) -> None:
        payload = encode(message)
        for _ in range(self._weather.copies(self._random)):
            self._at(now + self._weather.delay(self._random), lambda at: self._deliver(payload))

    def _deliver(self, payload: bytes) -> None:
        self.bytes_down += len(payload)
        self._delivered += 1
        if self._weather.cut_after is not None and self._delivered > self._weather.cut_after:
            self.lost = True
        else:
            self._inbox.append(decode(payload))


def request(
    step: int = 1, max_tokens: int = 24, committed: tuple[int, ...] = (), deadline_s: float | None = None
) -> StepRequest:
    return StepRequest(step, "find the silver bottle", b"jpeg", (EOS,), max_tokens, deadline_s, committed)


def lone_step(config: DraftingConfig | None = None, **changes: Any) -> DraftedStep:
    """Return a step that no loop runs, of a question that `changes` are of."""
    config = config or DraftingConfig()
    asked = StepRequest(1, "p", b"j", (EOS,), **changes)
    return DraftedStep(config, asked, AcceptanceStats(config), FakeClock())


class Bench:
    """One drafter with its model and link on one clock; `model` and `link` may be subclasses of the fakes.

    `how` is for the model's constructor.
    """

    def __init__(
        self,
        target: NextToken,
        draft: NextToken,
        weather: Weather,
        config: DraftingConfig,
        model: type[FakeModel] = FakeModel,
        link: type[FakeLink] = FakeLink,
        predictor: Predictor | None = None,
        **how: Any,
    ) -> None:
        self.clock = FakeClock()
        self.model: Any = model(draft, self.clock, **{"draft_s": DRAFT_S, **how})
        self.link: Any = link(target, self.clock, weather)
        self.trace = Trace(self.clock)
        self.drafter = Drafter(sources_of(config, self.model, predictor), self.link, config, self.clock, self.trace)

    def run(self, of: StepRequest | None = None, question: Question | None = None) -> StepResult:
        return self.drafter.run(of or request(), question)

    @property
    def drafts(self) -> list[tuple[float, Draft]]:
        """The drafts that were sent, and when."""
        return [(at, message) for at, message in self.link.sent if isinstance(message, Draft)]


def counting(length: int) -> NextToken:
    """A target that counts 0, 1, 2, ... and ends after `length` tokens."""
    return lambda prefix: EOS if len(prefix) >= length else len(prefix) % EOS


def never(prefix: object) -> int:
    return 6


WEATHERS = st.builds(
    Weather,
    verify_s=st.floats(0.01, 1.0),
    one_way_s=st.floats(0.0, 0.3),
    jitter_s=st.floats(0.0, 0.5),
    duplicates=st.floats(0.0, 0.3),
    losses=st.floats(0.0, 0.2),
    exits=st.integers(0, 4),
    wrong_exits=st.floats(0.0, 1.0),
    seed=st.integers(0, 10_000),
)
STALLED_S = 100.0
"""A silence that in any of `WEATHERS` is no chance. Where a fifth of the messages is lost each way, a draft stays
unanswered with p = 1 - 0.8**2 = 0.36. The default patience of 20 s has ten tries of it, 2 s apart: p**10 = 4e-5 for
each commit, and 1 in 600 for two answers of 24. Fifty tries leave p**50 = 7e-23."""


def patient(mode: Mode | str, **changes: Any) -> DraftingConfig:
    """Return the settings of `mode`, under which only a stall ends a step for silence, whatever the weather loses."""
    return DraftingConfig.of(mode, patience_s=STALLED_S, **changes)
