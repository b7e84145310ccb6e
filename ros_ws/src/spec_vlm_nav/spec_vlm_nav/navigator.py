"""One goal from its instruction to its end: frame, answer, action, next frame. No ROS, no sockets; time is given.

STOP (the model's answer: the task is done) and HOLD (the robot stands because something is wrong, and the goal goes on)
are different things throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from edge_drafter.reply import AnswerLate, Reply, VerifierLost, VerifierRefused
from spec_vlm_nav.motion import Outcome
from speculation.prompts import (
    ActionKind,
    Guidance,
    NavigationAction,
    ResponseOrder,
    Vocabulary,
    compose,
    instruction_problem,
    parse_answer,
)
from speculation.settings import check

SETTLE_S = 0.15
"""After an action the robot comes to rest before the next frame counts."""
RETRY_S = 0.5
"""Pause before the next attempt where the verifier is lost or an action failed."""
EXECUTOR_LIMIT_S = 0.5
"""Longer silence of the executor is reported."""
INVALID_LIMIT, BLOCKED_LIMIT = 5, 5
"""A goal ends after so many answers without an action, or blocked actions, in a row."""
POLL_S = 0.02
HOLD_S = 1.0
"""The end of a goal waits so long for the executor to take the HOLD."""


class End(Enum):
    """How a goal ended."""

    STOPPED = "the model says that the task is done"
    CANCELLED = "cancelled"
    TIMEOUT = "the time allowance is used up"
    OUT_OF_ACTIONS = "the allowed number of actions is used up"
    STALE_CAMERA = "the time allowance ran out without a fresh camera frame"
    LINK_LOST = "no verifier"
    BAD_INSTRUCTION = "the instruction cannot be followed"
    NO_VALID_ACTION = "the model's answers were no actions"
    OBSTACLE = "something keeps blocking the robot"
    ROBOT_FAULT = "the robot does not execute actions"


class State(Enum):
    """What the robot is at, for people."""

    THINKING = "thinking"
    MOVING = "moving"
    HOLDING = "holding"


@dataclass(frozen=True)
class Frame:
    """A camera frame as JPEG."""

    jpeg: bytes
    arrived: float
    """By this machine's steady clock, seconds."""
    age: float
    """Seconds, when it arrived."""
    stamp: Any
    """Its header, for messages that refer to the frame."""


@dataclass(frozen=True)
class Ending:
    """How the executor finished an action."""

    outcome: Outcome | None
    """None where a newer action took over."""
    message: str


class Decoder(Protocol):
    """Answers questions about frames."""

    def objects(self, limit_s: float) -> Vocabulary | None:
        """Return the objects that the model was trained to find, None where it takes any instruction.

        Waits at most `limit_s` seconds for the verifier's list. Raises VerifierLost.
        """
        ...

    def answer(self, prompt: str, jpeg: bytes, deadline_s: float) -> Reply:
        """Return the answer. Raises VerifierLost, AnswerLate, or ValueError for a frame that is no image."""
        ...


class Body(Protocol):
    """What the navigator needs of the robot: frames, actions, reports."""

    def frame_after(self, moment: float) -> Frame | None:
        """Return the newest frame if it arrived after `moment` and is fresh, else None."""
        ...

    def asked(self, prompt: str, frame: Frame) -> None:
        """Publish the prompt about a frame, before the model gets it."""
        ...

    def act(self, step: int, action: NavigationAction | None, reply: Reply | None, frame: Frame | None) -> None:
        """Publish a decision; None is HOLD."""
        ...

    def ending(self, step: int) -> Ending | None:
        """Return how the action of `step` ended, None while it has not."""
        ...

    def executor_silence(self) -> float:
        """Return the seconds since the executor's last message."""
        ...

    def report(self, state: State, reason: str = "") -> None:
        """Give feedback."""
        ...


class NavigatorConfig(msgspec.Struct, frozen=True):
    """How a goal is prompted for, and its limits. Raises ValueError, naming the setting, for a value out of range."""

    order: Annotated[ResponseOrder, Meta(description="what answers begin with")] = ResponseOrder.REASON_FIRST
    guide: Annotated[
        Guidance, Meta(description="whether prompts explain the robot; auto: to models that have no objects.json")
    ] = Guidance.AUTO
    """Decided for each prompt: the model that answers is known only once the verifier is connected, and it may be
    replaced."""
    time_allowance_s: Annotated[float, Meta(ge=1.0, le=3600.0, description="default time of a goal, s")] = 300.0
    step_limit_s: Annotated[float, Meta(ge=0.5, le=600.0, description="longest time for one answer, s")] = 30.0
    action_limit_s: Annotated[float, Meta(ge=1.0, le=60.0, description="longest time for one action, s")] = 15.0
    stale_s: Annotated[float, Meta(ge=0.1, le=5.0, description="older camera frames are not used, s")] = 1.0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GoalResult:
    """The end of a goal."""

    end: End
    message: str
    """A sentence."""
    actions: int
    """Motions that were carried out."""
    elapsed_s: float
    held: bool = True
    """False where the robot was to stand and the executor did not confirm it; `message` ends with that."""


HOLD_UNCONFIRMED = "; action_executor did not confirm the HOLD"
"""What a goal's last sentence ends with where nobody knows whether the robot stands."""


class _Over(Exception):
    def __init__(self, end: End, detail: str = "") -> None:
        super().__init__(detail)
        self.end, self.detail = end, detail


class Navigator:
    """Runs one goal. Everything that it depends on is given, so tests run it on a clock of their own.

    The model remembers nothing, so each prompt lists what was done for this goal so far: the actions that the robot
    carried out, also those that something cut short, so that the prompt changes after an attempt that failed. A HOLD,
    an action that lost its odometry and the decisions of a dry run are not listed.
    """

    def __init__(
        self,
        decoder: Decoder,
        body: Body,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        cancelled: Callable[[], bool],
        config: NavigatorConfig,
    ) -> None:
        self._decoder, self._body, self._config = decoder, body, config
        self._clock, self._sleep, self._cancelled = clock, sleep, cancelled
        self._step = self._actions = self._invalid = self._blocked = 0
        self._done: list[NavigationAction] = []
        self._holding = ""
        self._why: End = End.TIMEOUT
        self._end_at = 0.0

    def run(
        self, instruction: str, time_allowance_s: float = 0.0, max_actions: int = 0, dry: bool = False
    ) -> GoalResult:
        """Follow `instruction` until the model stops, or a limit or the caller ends it; the robot stands afterwards."""
        began = self._clock()
        self._end_at = began + (time_allowance_s or self._config.time_allowance_s)
        try:
            while True:
                self._one_step(instruction, dry)
                if max_actions and self._actions >= max_actions:
                    raise _Over(End.OUT_OF_ACTIONS, f"{self._actions} actions")
        except _Over as over:
            held = over.end is End.STOPPED or self.stand(over.end.value, dry)
            message = over.end.value + (f": {over.detail}" if over.detail else "")
            message += "" if held else HOLD_UNCONFIRMED
            return GoalResult(over.end, message, self._actions, self._clock() - began, held)

    def stand(self, reason: str, dry: bool = False) -> bool:
        """Publish a HOLD and return whether the executor took it, at the latest after `HOLD_S`; a dry run has none.

        It waits although the goal was cancelled: a cancelled goal must leave a robot that stands.
        """
        step = self._publish(None, None, None)
        self._report(State.HOLDING, reason)
        until = self._clock() + HOLD_S
        while not dry and self._body.ending(step) is None:
            if self._clock() >= until:
                return False
            self._sleep(POLL_S)
        return True

    def _one_step(self, instruction: str, dry: bool) -> None:
        try:
            reply, frame = self._ask(instruction)
        except VerifierRefused as problem:
            raise _Over(End.LINK_LOST, str(problem)) from None
        except VerifierLost as problem:
            self._hold(f"verifier lost: {problem}", End.LINK_LOST)
            self._wait(RETRY_S)
            return
        except (AnswerLate, ValueError) as problem:
            self._hold(f"no answer: {problem}")
            self._count_invalid(str(problem))
            return
        self._check()
        parsed = parse_answer(reply.text)
        if parsed.action is None:
            self._hold(f"unreadable answer: {parsed.problem}", End.NO_VALID_ACTION, reply, frame)
            self._count_invalid(parsed.problem)
            return
        self._invalid, self._holding, self._why = 0, "", End.TIMEOUT
        step = self._publish(parsed.action, reply, frame)
        if parsed.action.kind is ActionKind.STOP:
            raise _Over(End.STOPPED, parsed.reasoning)
        self._report(State.MOVING)
        if not dry and self._follow(step):
            self._done.append(parsed.action)
        self._actions += 1

    def _ask(self, instruction: str) -> tuple[Reply, Frame]:
        """Return the model's answer about a fresh frame. Raises as `Decoder`."""
        config = self._config
        objects = self._decoder.objects(self._limit(config.step_limit_s))
        problem = instruction_problem(instruction, objects)
        if problem:
            raise _Over(End.BAD_INSTRUCTION, problem)
        frame = self._look()
        self._report(State.THINKING)
        prompt = compose(instruction, self._done, config.order, config.guide.applies(objects))
        self._body.asked(prompt, frame)
        return self._decoder.answer(prompt, frame.jpeg, self._limit(config.step_limit_s)), frame

    def _look(self) -> Frame:
        """Return a frame taken after the robot came to rest; hold while the camera gives none."""
        since = self._clock() + SETTLE_S
        while True:
            frame = self._body.frame_after(since)
            if frame is not None:
                if self._why is End.STALE_CAMERA:
                    self._holding, self._why = "", End.TIMEOUT
                return frame
            if self._clock() - since > self._config.stale_s:
                self._hold(f"no camera frame for {self._config.stale_s:g} s", End.STALE_CAMERA)
            self._wait(POLL_S)

    def _follow(self, step: int) -> bool:
        """Wait for the end of the action; return whether it was carried out, as far as nothing blocked it."""
        limit_s = self._config.action_limit_s
        until = self._clock() + limit_s
        while (ending := self._body.ending(step)) is None:
            if self._body.executor_silence() > EXECUTOR_LIMIT_S:
                self._report(State.HOLDING, "action_executor is silent")
            if self._clock() > until:
                raise _Over(End.ROBOT_FAULT, f"an action did not end within {limit_s:g} s")
            self._wait(POLL_S)
        if ending.outcome in (None, Outcome.NO_ODOMETRY):
            self._hold(ending.message)
            self._wait(RETRY_S)
        elif ending.outcome is Outcome.BLOCKED:
            self._blocked += 1
            self._report(State.THINKING, f"blocked: {ending.message}")
            if self._blocked >= BLOCKED_LIMIT:
                raise _Over(End.OBSTACLE, f"{self._blocked} actions in a row were blocked")
        else:
            self._blocked = 0
        return ending.outcome not in (None, Outcome.NO_ODOMETRY)

    def _count_invalid(self, problem: str) -> None:
        self._invalid += 1
        if self._invalid >= INVALID_LIMIT:
            raise _Over(End.NO_VALID_ACTION, f"{self._invalid} in a row; the last: {problem}")

    def _hold(
        self, reason: str, end: End = End.TIMEOUT, reply: Reply | None = None, frame: Frame | None = None
    ) -> None:
        """Stand, publish why (once a reason), and remember what the goal ends with if that lasts."""
        if reason != self._holding:
            self._publish(None, reply, frame)
        self._holding, self._why = reason, end
        self._report(State.HOLDING, reason)

    def _publish(self, action: NavigationAction | None, reply: Reply | None, frame: Frame | None) -> int:
        step, self._step = self._step, self._step + 1
        self._body.act(step, action, reply, frame)
        return step

    def _report(self, state: State, reason: str = "") -> None:
        self._body.report(state, reason)

    def _limit(self, wanted: float) -> float:
        return max(0.05, min(wanted, self._end_at - self._clock()))

    def _wait(self, seconds: float) -> None:
        self._check()
        self._sleep(seconds)
        self._check()

    def _check(self) -> None:
        if self._cancelled():
            raise _Over(End.CANCELLED)
        if self._clock() >= self._end_at:
            raise _Over(self._why, self._holding)
