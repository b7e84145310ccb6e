"""One session's step on virtual time: a scheduler, a machine with declared times, and drafts that a test sends."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cloud_verifier.choice import Act
from cloud_verifier.config import Scheduling
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.policies import Batch
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.step import Step
from cloud_verifier.tree import Tree
from speculation.acceptance import Verdict
from speculation.wire import ROOT, BeginStep, Commit, Draft, Idle, begin_digest, extend_digest
from vlm_nav_evaluation.virtual_time import timeline as virtual_time

EOS = 0
VOCABULARY = 50
MODEL = ModelInfo("fake", "f" * 16, "t" * 16, VOCABULARY, 4, (), (EOS,))


@dataclass(frozen=True)
class Pass:
    """One target forward: from `start` to `end`, `nominal` seconds on an even machine, `tokens` committed."""

    act: Act
    start: float
    end: float
    nominal: float
    tokens: int


@dataclass
class Timeline:
    """Runs steps whose answer is `truth`. `pass_s(tokens)` is T_q; `noise(nominal)` is what it really takes.

    Where the scheduler has a draft model, `own(truth from here on, levels)` are the tokens that it drafts, a chain, in
    `own_s` a level, and takes each of them for right with probability `own_sure`.

    Whoever drafts listens to `on_commit` and sends with `at` and `draft`.
    """

    scheduler: Scheduler
    pass_s: Callable[[int], float]
    noise: Callable[[float], float] = lambda nominal: nominal
    on_commit: Callable[[Commit], None] = lambda commit: None
    own: Callable[[list[int], int], list[int]] = lambda rest, levels: rest[:levels]
    own_s: float = 0.0
    own_sure: float = 0.8
    own_prefill_s: float = 0.0
    truth: list[int] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    _events: virtual_time.Timeline = field(default_factory=virtual_time.Timeline)
    lent: float = 0.0
    """Credit that the latest step began with."""
    begun: BeginStep = field(init=False)
    _step: int = 0
    _round: int = 0

    @property
    def now(self) -> float:
        return self._events.now

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time, `now` at the earliest."""
        self._events.at(max(when, self.now), action)

    def draft(self, start: int, tokens: list[int], parents: list[int] | None = None) -> None:
        """Let a draft behind the true answer's first `start` tokens arrive now."""
        prefix = self.truth[:start]
        digest = extend_digest(begin_digest(self.begun.prompt, self.begun.jpeg), prefix)
        self._round += 1
        message = Draft(self._step, self._round, len(prefix), digest, tokens, parents)
        for commit in self.scheduler.offer(0, message, self.now):
            self.on_commit(commit)

    def run(self, truth: list[int], hints: list[list[int]] | None = None) -> list[Pass]:
        """Run one step from the end of its prefill to its last commit, and return its passes."""
        self.truth, self.passes, self._round = truth, [], 0
        self._events.clear()
        self._step += 1
        self.begun = BeginStep(
            self._step, f"step {self._step}", b"jpeg", max_tokens=len(truth), idle=Idle.LEDGER, hints=hints or []
        )
        self.scheduler.begin(0, self.begun, self.now)
        step = self.scheduler.step(0)
        assert step is not None
        step.prefill.prepared(())
        assert self.scheduler.next(self.now).encodes == (step,)
        if self.scheduler.costs.drafts is not None:
            step.prefill.draft_inputs = ()
            self.scheduler.costs.drafts.prefill(self.own_prefill_s)
        step.prefilled(0, self.now, 0.1)
        self.lent = step.ledger.lent
        self.on_commit(Commit(self._step, 0, 0, [], bytes(8), False))
        while sum(each.tokens for each in self.passes) < len(truth):
            self._turn()
        self.scheduler.end(0)
        return self.passes

    def _turn(self) -> None:
        self._deliver(self.now)
        if batch := self.scheduler.next(self.now):
            self._verify(batch)
            return
        due = batch.again
        assert due is not None, "a step with a ledger sleeps for ever"
        assert due > self.now, "a wait that is over is waited again"
        self._deliver(min(due, self._events.due))

    def _verify(self, batch: Batch) -> None:
        (step,) = batch.choices
        assert step.row is not None
        began = self.now
        if step.row.self_draft:
            self._draft_here(step)
        tokens = 1 + len(step.row.tokens)
        nominal = self.pass_s(tokens)
        started = self.now
        drafted_s = started - began
        end = started + self.noise(nominal)
        self._deliver(end)
        self.scheduler.costs.passes.observe(step.row.load, end - started)
        commit = step.accept(judge(step, self.truth), self.now, end - started)
        self.passes.append(Pass(step.act, began, end, drafted_s + nominal, len(commit.tokens)))
        self.on_commit(commit)

    def _draft_here(self, step: Step) -> None:
        assert step.row is not None and self.scheduler.costs.drafts is not None
        began, levels = self.now, step.row.self_depth
        if not step.prefill.drafts_here:
            self._deliver(self.now + self.own_prefill_s)
            step.prefill.draft_ready()
        tokens = self.own(self.truth[step.answer.position :], levels)
        for turn in range(1, levels + 1):
            self._deliver(self.now + self.own_s)
            self.scheduler.costs.drafts.forward(turn, self.own_s)
            reach = [self.own_sure ** (1 + place) for place in range(min(turn, len(tokens)))]
            tree = Tree.own(tokens[:turn], range(ROOT, len(reach) - 1), reach)
            if not self.scheduler.goes_on({step.index: tree}, turn + 1, self.now - began, self.now):
                break
        step.draft_here(tree, self.now - began, self.now)

    def _deliver(self, until: float) -> None:
        self._events.advance(until)
        self._events.now = max(self.now, until)


def judge(step: Step, truth: list[int]) -> Verdict:
    """Return the verdict of a target whose answer is `truth` on what a step verifies."""
    rest, tree = truth[step.answer.position :], step.tree
    path: list[int] = []
    node = ROOT
    while len(path) + 1 < len(rest):
        below = (n for n, parent in enumerate(tree.parents) if parent == node and tree.tokens[n] == rest[len(path)])
        child = next(below, None)
        if child is None:
            break
        path.append(child)
        node = child
    return Verdict(tuple(path), rest[len(path)], 0.5)


def behind(passes: list[Pass], decode_s: float, begun: float) -> list[float]:
    """Return, just before every commit, the tokens of decoding alone less those of the step.

    A pass counts as its nominal time: what slows the machine slows decoding alone as much.
    """
    gaps = []
    elapsed, now, tokens = 0.0, begun, 0
    for each in passes:
        elapsed += (each.start - now) + each.nominal
        gaps.append(elapsed / decode_s - tokens)
        now, tokens = each.end, tokens + each.tokens
    return gaps


class SteadyEdge:
    """An edge of fixed speed and acceptance: `draft_s` a token, `one_way_s` a message, drafts of `depth` tokens, each
    right with probability `chance`.

    With probability `ahead` the draft that follows a verification is there before its commit. Otherwise the edge hears
    the commit first; what it is drafting goes on where the commit agrees with it, and begins anew where not.
    """

    def __init__(
        self, timeline: Timeline, rng: random.Random, draft_s: float, one_way_s: float, depth: int, chance: float,
        ahead: float,
    ) -> None:  # fmt: skip
        self._line, self._random = timeline, rng
        self._draft_s, self._one_way_s, self._depth, self.chance, self._ahead = draft_s, one_way_s, depth, chance, ahead
        self._start, self._tokens, self._count = 0, [0] * 0, 0
        timeline.on_commit = self.commit

    def commit(self, commit: Commit) -> None:
        """A commit leaves the verifier."""
        end = commit.start + len(commit.tokens)
        if commit.start == end == 0:
            self._begin(0)
        elif commit.round and self._random.random() < self._ahead:
            self._line.draft(end, self._propose(end))
            self._count += 1
        else:
            self._line.at(self._line.now + self._one_way_s, lambda: self._receive(end))

    def _receive(self, end: int) -> None:
        known = self._line.truth[self._start : end]
        if not self._tokens or end <= self._start or self._tokens[: len(known)] != known or len(known) >= self._depth:
            self._begin(end)

    def _begin(self, start: int) -> None:
        if start >= len(self._line.truth):
            return
        self._count += 1
        count, tokens = self._count, self._propose(start)
        self._start, self._tokens = start, tokens
        ready = self._line.now + self._draft_s * len(tokens) + self._one_way_s
        self._line.at(ready, lambda: self._arrive(count, start, tokens))

    def _arrive(self, count: int, start: int, tokens: list[int]) -> None:
        if count == self._count:
            self._tokens = []
            self._line.draft(start, tokens)

    def _propose(self, start: int) -> list[int]:
        rest = self._line.truth[start : start + self._depth]
        return [t if self._random.random() < self.chance else t % (VOCABULARY - 1) + 1 for t in rest]


def answer(rng: random.Random, size: int = 30) -> list[int]:
    return [rng.randrange(1, VOCABULARY) for _ in range(size)]


@dataclass(frozen=True)
class Pace:
    """What steps took: seconds of decoding alone over theirs, and passes."""

    speed: float
    passes_per_token: float
    acts: dict[Act, int]


def pace(
    edge: dict[str, float], pass_s: Callable[[int], float], size: int, steps: int = 20, seed: int = 3, **settings: float
) -> Pace:
    """Run steps of `size` tokens with a steady edge."""
    line = Timeline(Scheduler(MODEL, Scheduling(**settings)), pass_s)  # type: ignore[arg-type]
    rng = random.Random(seed)
    SteadyEdge(line, rng, **edge)  # type: ignore[arg-type]
    acts = dict.fromkeys(Act, 0)
    for _ in range(steps):
        for each in line.run(answer(rng, size)):
            acts[each.act] += 1
    tokens = size * steps
    return Pace(tokens * pass_s(1) / line.now, sum(acts.values()) / tokens, acts)


GO2 = {"draft_s": 0.072, "one_way_s": 0.12, "depth": 4, "chance": 0.727}
"""The Go2's draft and link against a target forward of 620 ms (config/profiles.json, go2_a100)."""
TAU = sum(0.727**level for level in range(5))


def go2_pass(tokens: int) -> float:
    """T_q at the Go2's times."""
    return 0.62


def stop_and_wait_speed() -> float:
    """Seconds of decoding alone over those of stop and wait: tau T_q / (gamma T_p + T_q + 2 T_c)."""
    return TAU * 0.62 / (4 * 0.072 + 0.62 + 2 * 0.12)
