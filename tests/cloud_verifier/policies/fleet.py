"""Many robots over one scheduler on a virtual clock: a machine with a declared price, edges that draft and wait. A
prefill takes no time here: what is looked at are passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cloud_verifier.config import Limits, Scheduling
from cloud_verifier.estimator import Costs, Estimator
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.policies import Batch
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.service_classes import SERVICE_CLASSES, ServiceClass
from speculation.wire import BeginStep, Commit, Draft, Idle
from tests.cloud_verifier.timeline import judge
from vlm_nav_evaluation.virtual_time import timeline as virtual_time

VOCABULARY = 1000
MODEL = ModelInfo("fake", "f" * 16, "t" * 16, VOCABULARY, 4, (), (0,))


@dataclass
class Robot:
    """An edge that drafts `depth` tokens in `draft_s` each, sends them, waits for the commit, and goes on."""

    service: ServiceClass = SERVICE_CLASSES["interactive"]
    idle: Idle = Idle.WAIT
    draft_s: float = 0.02
    round_trip_s: float = 0.02
    depth: int = 4
    chance: float = 0.75
    """That a draft token is right."""
    prompt: int = 600
    """Tokens of image and prompt."""
    answer: int = 60
    """Tokens of an answer; the next step begins with its last commit."""
    starts_at: float = 0.0


@dataclass(frozen=True)
class Round:
    """One commit as its robot sees it."""

    robot: int
    tokens: int
    waited_s: float
    """At the verifier, for the pass to begin."""


@dataclass
class Fleet:
    """Runs robots until a time and keeps every round.

    Every commit is compared with the answer, and every promise of `Batch.again` is held to.
    """

    robots: Sequence[Robot]
    cost: PassCost
    settings: Scheduling
    seed: int = 0
    scheduler: Scheduler = field(init=False)
    on_batch: Callable[[Batch], None] = lambda batch: None
    rounds: list[Round] = field(default_factory=list)
    _events: virtual_time.Timeline = field(default_factory=virtual_time.Timeline)

    def __post_init__(self) -> None:
        limits = Limits(max_sessions=256)
        self.scheduler = Scheduler(MODEL, self.settings, limits, Costs(Estimator(self.cost)))
        self._random = [random.Random(f"{self.seed} {index}") for index in range(len(self.robots))]
        self._numbers = [0] * len(self.robots)
        self._rounds = [0] * len(self.robots)
        for index, robot in enumerate(self.robots):
            self.at(robot.starts_at, lambda index=index: self._begin(index))  # type: ignore[misc]

    @property
    def now(self) -> float:
        return self._events.now

    @property
    def steps(self) -> list[Step]:
        """The steps under way."""
        found = (self.scheduler.step(index) for index in range(len(self.robots)))
        return [step for step in found if step is not None]

    @property
    def _may_think_again(self) -> bool:
        """Whether a step may wait on at the time at which its ledger decides again."""
        return any(robot.idle is Idle.LEDGER for robot in self.robots)

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._events.at(when, action)

    def truth(self, index: int) -> list[int]:
        """Return the answer to a robot's step under way."""
        rng = random.Random(f"{self.seed} {index} {self._numbers[index]}")
        return [rng.randrange(1, VOCABULARY) for _ in range(self.robots[index].answer)]

    def run(self, until: float) -> Fleet:
        promised: float | None = None
        while self.now < until:
            self._deliver(self.now)
            batch = self.scheduler.next(self.now)
            due = batch.again
            if batch:
                self.on_batch(batch)
                self._work(batch)
                continue
            assert due is None or due > self.now, "work is promised for now, and there is none"
            assert promised != self.now or self._may_think_again, "work was promised for now, and there is none"
            self._deliver(min(until, self._events.due, until if due is None else due))
            promised = due
        return self

    def _work(self, batch: Batch) -> None:
        started = self.now
        waited = {step: started - step.since for step in batch.choices}
        rows = [step.row for step in batch.choices if step.row is not None]
        seconds = self.cost.seconds(Load.total(row.load for row in rows))
        self._deliver(started + seconds)
        for step in batch.choices:
            commit = step.accept(judge(step, self.truth(step.index)), self.now, seconds)
            index = step.index
            assert commit.tokens == self.truth(index)[commit.start :][: len(commit.tokens)], "a token of nobody's"
            self.rounds.append(Round(index, len(commit.tokens), waited[step]))
            self._after(index, commit)

    def _after(self, index: int, commit: Commit) -> None:
        """Let a robot take a commit and draft on."""
        robot, number = self.robots[index], self._numbers[index]
        if commit.done:
            self.scheduler.end(index)
            self.at(self.now + robot.round_trip_s, lambda: self._begin(index))
        elif robot.idle is not Idle.DECODE:
            start = commit.start + len(commit.tokens)
            depth = min(robot.depth, max(0, robot.answer - start - 1))
            seconds = depth * robot.draft_s
            arrives = self.now + robot.round_trip_s + seconds
            self.at(arrives, lambda: self._draft(index, number, start, commit.digest, depth, seconds))

    def _draft(self, index: int, number: int, start: int, digest: bytes, depth: int, seconds: float) -> None:
        step = self.scheduler.step(index)
        if step is None or step.number != number:
            return
        rest, rng = self.truth(index)[start : start + depth], self._random[index]
        tokens = [t if rng.random() < self.robots[index].chance else t % (VOCABULARY - 1) + 1 for t in rest]
        self._rounds[index] += 1
        draft = Draft(number, self._rounds[index], start, digest, tokens, draft_ms=round(seconds * 1e3))
        for commit in self.scheduler.offer(index, draft, self.now):
            self._after(index, commit)

    def _begin(self, index: int) -> None:
        robot = self.robots[index]
        self._numbers[index] += 1
        begin = BeginStep(
            self._numbers[index], "p", b"j", max_tokens=robot.answer, idle=robot.idle, round_trip_s=robot.round_trip_s
        )
        self.scheduler.begin(index, begin, self.now, service_class=robot.service.name)
        step = self.scheduler.step(index)
        assert step is not None
        step.prefill.prepared((), robot.prompt)
        step.prefilled(robot.prompt, self.now)
        self._after(index, Commit(step.number, 0, 0, [], step.answer.digest, False))

    def _deliver(self, until: float) -> None:
        self._events.advance(until)
        self._events.now = max(self.now, until)
