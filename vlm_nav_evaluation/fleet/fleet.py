"""The fleet: events on one clock, robots, and a verifier whose every decision is production's `Scheduler`'s.

No socket, no model, no thread: messages are production's own, a pass takes what its load costs, and a verdict compares
the draft with the request's answer. Left out: images and their encoding, the robots' own prefill, lost messages, and
a limit of memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cloud_verifier.config import Limits
from cloud_verifier.estimator import Costs, DraftCosts, Estimator
from cloud_verifier.interfaces import ModelInfo, Row
from cloud_verifier.policies import Batch
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.step import Step
from cloud_verifier.tree import Tree
from speculation.acceptance import Verdict
from speculation.pass_cost import Load
from speculation.service_classes import INTERACTIVE, SERVICE_CLASSES
from speculation.wire import MAX_DRAFT_TOKENS, ROOT, BeginStep, Commit, Draft, EarlyTokens, begin_digest
from vlm_nav_evaluation.fleet.robots import ChainDrafter, TreeDrafter, levels_of
from vlm_nav_evaluation.fleet.systems import Exit, Setting
from vlm_nav_evaluation.fleet.trees import best_tree
from vlm_nav_evaluation.fleet.workload import EOS, VOCABULARY
from vlm_nav_evaluation.virtual_time.timeline import Timeline

MODEL = ModelInfo("fleet", "", "", VOCABULARY, 1, (), (EOS,))
PROMPT = "-"
EMPTY = begin_digest(PROMPT, b"")
TICK_S = 1e-9
"""A policy that is asked again at once is asked a moment later: time must pass."""
START_S = 2.0
"""Robots begin at random within so many seconds, in the midst of an answer."""


@dataclass
class Asked:
    """One request as its robot saw it. Times are seconds."""

    robot: int
    service_class: str
    begun: float
    tokens: int
    ended: float | None = None
    committed: list[int] = field(default_factory=list)

    def late(self, now: float) -> bool | None:
        """Whether it misses its class; None while that is open."""
        limit = self.tokens / SERVICE_CLASSES[self.service_class].tokens_per_s
        if self.ended is not None:
            return self.ended - self.begun > limit
        return True if now - self.begun > limit else None


class Verified(NamedTuple):
    """One step's share of a pass."""

    ended: float
    committed: int
    queue_s: float


class Pass(NamedTuple):
    """One target forward."""

    ended: float
    seconds: float
    rows: int


@dataclass
class Log:
    """What happened."""

    asked: list[Asked] = field(default_factory=list)
    verified: list[Verified] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    deciding_s: list[float] = field(default_factory=list)
    """Seconds of this machine's processor that the scheduler took for each batch, queries included."""


class KnownCost(Estimator):
    """An estimator that was seeded with the cost that passes have: predictions are right."""

    known = priced = True
    """It can always predict."""
    spread = 0.0
    """Passes of one load take one time."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self._times = setting.times

    def observe(self, load: Load, seconds: float) -> None:
        """There is nothing to learn."""

    def seconds(self, load: Load) -> float:
        """Return the seconds of a pass."""
        return self._times.pass_s(load)


class Robot:
    """One robot: it asks, drafts, takes commits, and asks again at once."""

    def __init__(self, fleet: Fleet, index: int, service_class: str) -> None:
        self._fleet, self.index, self.service_class = fleet, index, service_class
        setting = fleet.setting
        self._one_way_s = setting.times.one_way_s
        self.number = 0
        self._round = self._version = 0
        self._began = 0.0
        drafting = setting.system.drafting
        self._drafter: ChainDrafter | TreeDrafter | None = None
        if drafting is not None:
            workload, draft_s = setting.workload, setting.times.draft_s
            tree = TreeDrafter(drafting, draft_s, workload.kinds, workload.shares) if drafting.tree else None
            self._drafter = tree or ChainDrafter(drafting, setting.times.draft_s)

    def ask(self) -> None:
        """Begin the next request."""
        fleet = self._fleet
        self.number += 1
        self.request = fleet.setting.workload.request(self.index, self.number)
        if self.number == 1:
            self.request = self.request.beginning(fleet.phases[self.index])
        self.asked = Asked(self.index, self.service_class, fleet.timeline.now, len(self.request.answer))
        fleet.log.asked.append(self.asked)
        system, now = fleet.setting.system, fleet.timeline.now
        self._round, self._digest = 0, EMPTY
        begin = BeginStep(
            self.number, PROMPT, b"", max_tokens=len(self.request.answer), idle=system.idle,
            self_draft=system.server_draft, self_depth=system.server_depth, round_trip_s=2.0 * self._one_way_s,
        )  # fmt: skip
        fleet.timeline.at(now + self._one_way_s, partial(fleet.begin, self, begin))
        if self._drafter is not None:
            self._drafter.begin(self.request, now)
            self._began = now
            self._plan()

    def take(self, commit: Commit) -> None:
        """Take in a commit of the current request."""
        now, asked = self._fleet.timeline.now, self.asked
        if commit.step != self.number:
            return
        # A draft that comes after its commit is answered with that commit again.
        tokens = commit.tokens[len(asked.committed) - commit.start :]
        if not tokens:
            return
        asked.committed.extend(tokens)
        self._digest = commit.digest
        if commit.done:
            asked.ended = now
            self._version += 1
            self.ask()
            return
        if self._drafter is not None:
            self._drafter.commit(tokens, now)
            self._began = now
            self._plan()

    def take_early(self, early: EarlyTokens) -> None:
        """Take in what an exit says of the latest draft."""
        if self._drafter is not None and (early.step, early.round) == (self.number, self._round):
            self._drafter.early(early, self._fleet.timeline.now)

    def _plan(self) -> None:
        assert self._drafter is not None
        self._version += 1
        due = self._drafter.due(self._fleet.timeline.now)
        if due is not None:
            self._fleet.timeline.at(due, partial(self._send, self._version))

    def _send(self, version: int) -> None:
        if version != self._version or self._drafter is None:
            return
        fleet, now = self._fleet, self._fleet.timeline.now
        tokens, parents = self._drafter.draft(now)
        self._round += 1
        milliseconds = round(1e3 * (now - self._began))
        start = len(self.asked.committed)
        draft = Draft(self.number, self._round, start, self._digest, tokens, parents, draft_ms=milliseconds)
        fleet.timeline.at(now + self._one_way_s, partial(fleet.offer, self, draft))
        self._plan()


class Fleet:
    """So many robots at one verifier; the same seed gives the same run."""

    def __init__(self, setting: Setting, robots: int, seed: int = 0) -> None:
        self.setting, self.timeline, self.log = setting, Timeline(), Log()
        system = setting.system
        limits = Limits(max_draft=MAX_DRAFT_TOKENS)
        costs = Costs(KnownCost(setting), drafts=DraftCosts() if system.server_draft else None)
        self.scheduler = Scheduler(MODEL, system.scheduling, limits, costs)
        random = np.random.default_rng([seed, 17])
        names = setting.classes or (INTERACTIVE.name,)
        chosen = random.permutation(np.resize(np.arange(len(names)), robots))
        self.robots = [Robot(self, index, names[chosen[index]]) for index in range(robots)]
        phases, starts = random.random(robots), random.random(robots) * START_S
        self.phases: tuple[float, ...] = tuple(phases.tolist())
        """What part of its first answer each robot is still to get: a fleet is never in step."""
        for robot, start in zip(self.robots, starts, strict=True):
            self.timeline.at(float(start), robot.ask)
        self._busy = self._turning = False
        self._alarm = 0
        self._random = np.random.default_rng([seed, 29])

    # --- messages, as they reach the verifier

    def begin(self, robot: Robot, begin: BeginStep) -> None:
        """A request arrives."""
        now = self.timeline.now
        for commit in self.scheduler.begin(robot.index, begin, now, service_class=robot.service_class):
            self._reply(robot, commit)
        step = self.scheduler.step(robot.index)
        assert step is not None
        tokens = robot.request.prompt - 1
        step.prefill.prepared(robot.request, tokens, image_tokens=0)
        if not self.setting.system.cached:
            # Every verification computes the prompt: there is nothing to do before the first.
            step.prefilled(tokens, self.timeline.now)
        self._turn_soon()

    def offer(self, robot: Robot, draft: Draft) -> None:
        """A draft arrives."""
        for commit in self.scheduler.offer(robot.index, draft, self.timeline.now):
            self._reply(robot, commit)
        self._turn_soon()

    def _reply(self, robot: Robot, commit: Commit) -> None:
        self.timeline.at(self.timeline.now + self.setting.times.one_way_s, partial(robot.take, commit))

    # --- work

    def _turn_soon(self) -> None:
        if not (self._busy or self._turning):
            self._turning = True
            self.timeline.at(self.timeline.now, self._turn)

    def _wake(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._turn_soon()

    def _turn(self) -> None:
        """Run what the scheduler chooses, as `Server.turn` does."""
        self._turning = False
        if self._busy:
            return
        now, scheduler = self.timeline.now, self.scheduler
        began = time.thread_time()
        batch = scheduler.next(now)
        if batch:
            self.log.deciding_s.append(time.thread_time() - began)
            self._busy = True
            self._run(batch)
        elif batch.again is not None:
            self._alarm += 1
            self.timeline.at(max(batch.again, now + TICK_S), partial(self._wake, self._alarm))

    def _run(self, batch: Batch) -> None:
        """Let the batch take its time: drafts of the verifier's own, then the forward."""
        began, steps = self.timeline.now, tuple(batch.choices)
        drafting_s = self._draft_here(steps)
        rows = [step.row for step in steps if step.row is not None]
        chunks = [step.prefill.load(tokens) for step, tokens in batch.chunks.items()]
        load = Load.total([*map(self._load, rows), *chunks])
        seconds = self.setting.times.pass_s(load) if load.rows else 0.0
        self._plan_exits(batch, began + drafting_s, seconds)
        self.timeline.at(began + drafting_s + seconds, partial(self._ran, batch, load, began, seconds))

    def _plan_exits(self, batch: Batch, began: float, seconds: float) -> None:
        """Let exits name verdicts on the drafts of a batch, as far as they know them."""
        exits = self.setting.system.exits
        for step in batch.choices if exits else ():
            sampled = self._random.random()
            for each in exits:
                if step.row is not None and step.row.exits:
                    named = partial(self._exit, step, step.row, each, sampled < each.right)
                    self.timeline.at(began + each.after * seconds, named)

    def _exit(self, step: Step, row: Row, each: Exit, right: bool) -> None:
        robot = self.robots[step.index]
        if step.row is not row or not self.scheduler.is_current(step):
            return
        found = verdict(row, step.answer.position, robot.request.answer)
        if not right:
            found = replace(found, token=(found.token + 1) % EOS)
        early = step.early(each.layer, found, each.right)
        if early is not None:
            self.timeline.at(self.timeline.now + self.setting.times.one_way_s, partial(robot.take_early, early))

    def _load(self, row: Row) -> Load:
        """Return what a row computes."""
        return row.load if self.setting.system.cached else Load.row(row.cached + row.load.new)

    def _draft_here(self, steps: Sequence[Step]) -> float:
        """Let the draft model beside the target draft a tree; return its seconds."""
        system, workload, times = self.setting.system, self.setting.workload, self.setting.times
        seconds = 0.0
        asking = [step for step in steps if step.row is not None and step.row.self_draft]
        deepest = 0
        for step in asking:
            assert step.row is not None
            room = step.answer.room
            depth = min(system.server_depth, room)
            request = self.robots[step.index].request
            levels = levels_of(request, step.answer.position, depth, workload.kinds)
            shape = best_tree(levels, min(system.server_draft, step.row.self_draft), depth)
            tokens = shape.tokens(request.firsts, step.answer.position)
            step.draft_here(Tree.own(tokens, shape.parents, shape.reach(levels)))
            deepest = max(deepest, depth)
        width = max(1, system.server_draft // max(1, system.server_depth))
        for _ in range(deepest):
            seconds += times.server_draft.seconds(Load.total(Load.row(width, step.cached) for step in asking))
        return seconds

    def _ran(self, batch: Batch, load: Load, began: float, seconds: float) -> None:
        """End a pass: verdicts, commits, and the next turn."""
        self._busy = False
        self._turn_soon()
        if not load.rows:
            return
        now, log, scheduler = self.timeline.now, self.log, self.scheduler
        scheduler.costs.passes.observe(load, seconds)
        for step, tokens in batch.chunks.items():
            if scheduler.is_current(step):
                step.prefilled(tokens, now, seconds)
        for step in batch.choices:
            robot, row = self.robots[step.index], step.row
            if row is None or not scheduler.is_current(step):
                continue
            commit = step.accept(verdict(row, step.answer.position, robot.request.answer), now, now - began)
            log.verified.append(Verified(now, len(commit.tokens), commit.queue_s))
            self._reply(robot, commit)
        log.passes.append(Pass(now, now - began, load.rows))


def verdict(row: Row, position: int, answer: Sequence[int]) -> Verdict:
    """Return what the target makes of a row behind answer position `position`: greedy, the answer is known."""
    path: list[int] = []
    last, place = ROOT, position
    for index, (token, parent) in enumerate(zip(row.tokens, row.parents, strict=True)):
        if parent == last and token == answer[place]:
            path.append(index)
            last, place = index, place + 1
            if place == len(answer):
                break
    # A draft that reaches the answer's end leaves no token of the target's own; it is cut off.
    return Verdict(tuple(path), answer[min(place, len(answer) - 1)], 1.0)
