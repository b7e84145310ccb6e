"""The decisions of one goal: published in numbered steps, and accounted for by odometry. No ROS; time is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_drafter.question import Reply
from spec_vlm_nav.motion import Outcome
from spec_vlm_nav.navigation_goal import End, GoalEnded, NavigationGoal
from spec_vlm_nav.navigator_interfaces import Decision, Execution, RobotInterface, State
from spec_vlm_nav.question_asker import Asked
from speculation.language.prompts import ActionKind, ActionSize, NavigationAction

BLOCKED_LIMIT = 5
"""A goal ends after so many blocked actions in a row."""
FAULT_LIMIT = 3
"""A goal ends after so many actions in a row that what moves the robot could not carry out."""
STUCK_LIMIT = 10
"""A goal ends after so many blocked actions without one that led ahead."""
EXECUTOR_LIMIT_S = 0.5
"""Longer silence of the executor is reported."""
POLL_S = 0.02
HOLD_S = 1.0
"""The end of a goal waits so long for the executor to take the HOLD."""
DEGRADED_SIZE = ActionSize.SMALL
"""Size of every motion while the draft model decides alone because the link is lost."""


@dataclass
class StartedMotion:
    """The motion that was published last."""

    step: int
    action: NavigationAction
    alone: bool
    sized: bool
    """Whether the size is the answer's; otherwise it is the least."""


@dataclass(frozen=True)
class Hold:
    """Why the robot stands while its goal goes on."""

    reason: str
    """Why, in a sentence."""
    end: End = End.TIMEOUT
    """How the goal ends where its time runs out meanwhile."""


class ActionPublisher:
    """Publishes motions as their answers are committed, and the HOLDs between them.

    A motion is published on committed tokens only, in a lost link the draft model's: its kind (as the least size), then
    its size, then the whole answer.
    """

    def __init__(
        self, goal: NavigationGoal, body: RobotInterface, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self.held: Hold | None = None
        """Why the robot stands; None where nothing holds it."""
        self.motion: StartedMotion | None = None
        """The motion that is not accounted for yet."""
        self._goal, self._body, self._clock, self._sleep = goal, body, clock, sleep
        self._step = self._blocked = self._stuck = self._faults = 0
        self._lost_at: float | None = None
        """Since when no verifier has answered; None where one does."""

    def begin(self, asked: Asked, kind: ActionKind, size: ActionSize | None, reply: Reply | None) -> StartedMotion:
        """Publish a motion's first decision; without a size it is the least."""
        self.account()
        size = DEGRADED_SIZE if asked.alone else size
        motion = StartedMotion(
            self._next_step(), NavigationAction(kind, size or ActionSize.SMALL), asked.alone, size is not None
        )
        self.held = None
        self.publish(asked, motion, reply)
        if self._goal.is_dry:
            self._goal.actions += 1
        else:
            self.motion = motion
        self._body.report(State.MOVING)
        return motion

    def publish(self, asked: Asked, motion: StartedMotion, reply: Reply | None = None) -> None:
        """Publish a motion as far as it is known now."""
        self._body.act(asked.decision(motion.step, motion.action, reply))

    def end(self, asked: Asked, action: NavigationAction, reply: Reply) -> bool:
        """Publish what ends the goal, STOP or NOT_HERE, and return whether the robot stands.

        One that was not moving needs no STOP to stand.
        """
        step = self._next_step()
        self._body.act(asked.decision(step, action, reply))
        return self.motion is None or self.is_taken(step)

    def hold(self, reason: str, end: End = End.TIMEOUT, asked: Asked | None = None, reply: Reply | None = None) -> None:
        """Stand, and publish why, once a reason; `end` is how the goal ends if that lasts."""
        if self.held is None or self.held.reason != reason:
            step = self._next_step()
            self._body.act(Decision(step, None) if asked is None else asked.decision(step, None, reply))
        self.held = Hold(reason, end)
        self._body.report(State.HOLDING, reason)

    def hold_for_verifier(self, why: str, limit_s: float) -> None:
        """Stand until the verifier is back: published once, for one reason, however its sentence changes meanwhile.

        Raises GoalEnded where it has been away for `limit_s` seconds.
        """
        now = self._clock()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at >= limit_s:
            raise GoalEnded(End.LINK_LOST, f"{why}; the robot waited {limit_s:g} s for it")
        if self.held is None or self.held.end is not End.LINK_LOST:
            self.hold(f"verifier lost: {why}", End.LINK_LOST)

    def answered(self) -> None:
        """Note that the model answers, which ends any hold."""
        self._lost_at = None
        if self.held is not None:
            self.held = None
            self._body.report(State.THINKING)

    def is_held(self, execution: Execution | None) -> bool:
        """Report how the executor stands with a motion, and return whether it holds the robot."""
        why = execution.message if execution is not None else ""
        if self._body.executor_silence() > EXECUTOR_LIMIT_S:
            why = "action_executor is silent"
        if why or execution is not None:
            self._body.report(State.HOLDING if why else State.MOVING, why)
        self.held = Hold(why, End.ROBOT_FAULT) if why else None
        return bool(why)

    def release(self, end: End) -> None:
        """Note that what would have led to this end is over, where the robot stands for it."""
        if self.held is not None and self.held.end is end:
            self.held = None

    def stand(self, reason: str) -> int:
        """Publish the HOLD that ends a goal and return its step."""
        step = self._next_step()
        self._body.act(Decision(step, None))
        self._body.report(State.HOLDING, reason)
        return step

    def is_taken(self, step: int) -> bool:
        """Return whether the executor took what makes the robot stand, at the latest after `HOLD_S`.

        It waits although the goal was cancelled: a cancelled goal must leave a robot that stands. A dry run has no
        executor.
        """
        until = self._clock() + HOLD_S
        while not self._goal.is_dry and not has_ended(self._body.execution(step)):
            if self._clock() >= until:
                return False
            self._sleep(POLL_S)
        return True

    def account(self) -> None:
        """Note what the last motion came to, by odometry."""
        motion, self.motion = self.motion, None
        if motion is not None:
            self._goal.moved(motion.action, self._body.execution(motion.step))

    def count_failed(self, motion: StartedMotion, execution: Execution) -> None:
        """Count the motions that something blocked, or that failed. Raises GoalEnded where the robot gets nowhere."""
        if execution.outcome in (None, Outcome.NO_ODOMETRY):
            return
        self._faults = self._faults + 1 if execution.outcome is Outcome.FAULT else 0
        if self._faults >= FAULT_LIMIT:
            raise GoalEnded(End.ROBOT_FAULT, f"{self._faults} in a row failed; the last: {execution.message}")
        if execution.outcome is Outcome.FAULT:
            return
        if execution.outcome is not Outcome.BLOCKED:
            self._blocked = 0
            if motion.action.metres:
                self._stuck = 0
            return
        self._blocked += 1
        self._stuck += 1
        self._body.report(State.THINKING, f"blocked: {execution.message}")
        if self._blocked >= BLOCKED_LIMIT:
            raise GoalEnded(End.OBSTACLE, f"{self._blocked} actions in a row were blocked")
        if self._stuck >= STUCK_LIMIT:
            raise GoalEnded(End.OBSTACLE, f"{self._stuck} actions were blocked and none led ahead")

    def _next_step(self) -> int:
        step, self._step = self._step, self._step + 1
        return step


def has_ended(execution: Execution | None) -> bool:
    """Return whether the executor has done with a decision."""
    return execution is not None and execution.outcome is not Outcome.RUNNING
