"""nav2 as the way to move: an action is a goal of its behaviour DriveOnHeading or Spin, and what it commands passes.

nav2's costmap and collision checks guard the goal. What `motion.py` takes from odometry holds as well: that ends an
action which is done, blocked, late or shown wrongly, and slows its end. BackUp is never asked for, and only what leads
the action's way passes: a turn is made on the spot, and nothing goes backwards.

No ROS: `nodes/nav2_client.py` gives it messages and time (steady clock, seconds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from spec_vlm_nav.motion import LEAST_SHARE, Motion, MotionConfig, MotionStep, Outcome, PlanarPose, Response
from spec_vlm_nav.safety import ZERO, Velocity, Watchdog
from speculation.language.prompts import NavigationAction

ANSWER_S = 2.0
"""How long nav2 may take to accept a goal."""
SILENT_S = 1.0
"""Silence of a goal's feedback, which comes 10 times a second, after which nav2 counts as dead."""
LATE_S = 1.0
"""How much later than its time allowance a goal may end."""
END_S, CANCEL_S = 2.0, 0.5
"""How long nav2 may take to end a goal that was cancelled, and how often it is asked to."""
GRACE_S = 0.3
"""How long a goal whose action is done by odometry may take to end by itself, before it is cancelled."""
LEAST_ALLOWANCE_S = 1.0
QUIET_S = 0.5
"""nav2 must have stood so long, after a goal of ours, before what it commands for others passes."""
LEAST_M, LEAST_RAD = 0.01, 0.01
"""The smallest goal."""


class Behaviour(Enum):
    """A behaviour of nav2's, by the name of its action server."""

    DRIVE = "drive_on_heading"
    SPIN = "spin"


@dataclass(frozen=True)
class Nav2Goal:
    """A goal asks one of the behaviours for one motion."""

    number: int
    behaviour: Behaviour
    amount: float
    """Metres ahead, or radians counter-clockwise."""
    speed: float
    """m/s ahead; a Spin has none, and is kept to its speed by what passes."""
    allowance_s: float


class Result(NamedTuple):
    """A result says how a goal ended, in nav2's words."""

    status: str
    """succeeded, canceled or aborted."""
    code: int | None = None
    """`error_code`; None: this nav2's results have none, as Humble's."""
    name: str = ""
    """The code's name, e.g. COLLISION_AHEAD."""
    words: str = ""
    """`error_msg`."""


class Ended(NamedTuple):
    """An end is what a result means for the action."""

    outcome: Outcome
    message: str


class Behaviours(Protocol):
    """nav2's action servers. Both methods return at once."""

    def is_there(self, behaviour: Behaviour) -> bool:
        """Return whether the action server is known."""

    def send(self, goal: Nav2Goal) -> None:
        """Send a goal."""

    def cancel(self, number: int) -> None:
        """Have the goal of this number cancelled, if it was accepted."""


class Nav2:
    """One goal at a time at nav2, and the velocities that nav2 commands; older than `timeout` seconds they are zero."""

    def __init__(self, behaviours: Behaviours, timeout: float) -> None:
        self.ended: Ended | None = None
        """How the newest goal ended, other than by `end`; None while it goes on."""
        self._behaviours = behaviours
        self._velocity, self._watchdog = ZERO, Watchdog(timeout)
        self._goal: Nav2Goal | None = None
        self._number = 0
        self._accepted = self._commanded = self._cancelled = False
        self._sent_at = self._heard_at = self._cancel_at = 0.0
        self._ending_at: float | None = None
        """Since when the goal is to end."""
        self._stood_at: float | None = None
        """Since when nav2 has stood without a goal of ours; None while it has not."""

    @property
    def is_idle(self) -> bool:
        """Whether nav2 has no goal of ours, as far as is known."""
        return self._goal is None

    def begin(self, behaviour: Behaviour, amount: float, speed: float, allowance_s: float, now: float) -> None:
        """Send a goal, in place of which `ended` says so where nobody is there to take it."""
        self.ended, self._stood_at = None, None
        if not self._behaviours.is_there(behaviour):
            words = "is not there: start nav2's behavior_server, in this namespace and ROS domain"
            self.ended = Ended(Outcome.FAULT, f"nav2's action server {behaviour.value} {words}")
            return
        self._number += 1
        self._goal = Nav2Goal(self._number, behaviour, amount, speed, allowance_s)
        self._accepted = self._commanded = self._cancelled = False
        self._sent_at, self._ending_at = now, None
        self._behaviours.send(self._goal)

    def end(self, now: float, grace_s: float = 0.0) -> None:
        """Let nothing more of the goal pass, and have it cancelled where it has not ended after `grace_s` seconds."""
        self.ended = None
        if self._goal is None:
            return
        if self._ending_at is None:
            self._ending_at, self._cancel_at = now, now + grace_s
        elif not self._cancelled:
            self._cancel_at = min(self._cancel_at, now + grace_s)
        self.tick(now)

    def tick(self, now: float) -> None:
        """See whether nav2 is late, and repeat what it has not done."""
        self._stand(now)
        goal = self._goal
        if goal is None:
            return
        if self._ending_at is None:
            late = self._lateness(goal, now)
            if late:
                self.end(now)
                self._fail(f"{goal.behaviour.value} {late}: is nav2's behavior_server alive?")
        elif not self._behaviours.is_there(goal.behaviour):
            self._goal = None
        else:
            if now >= self._cancel_at:
                self._cancelled, self._cancel_at = True, now + CANCEL_S
                self._behaviours.cancel(goal.number)
            if now - self._ending_at > END_S:
                self._fail(f"{goal.behaviour.value} has not ended a goal {END_S:g} s after it was told to")

    def driving(self, now: float) -> Velocity:
        """Return what nav2 commands for the goal under way."""
        return self._newest(now) if self._goal is not None and self._accepted and self._ending_at is None else ZERO

    def passing(self, now: float) -> Velocity:
        """Return what nav2 commands for goals of others; zero until it has stood after a goal of ours."""
        stood = self._stood_at is not None and now - self._stood_at >= QUIET_S
        return self._newest(now) if stood else ZERO

    def on_velocity(self, velocity: Velocity, now: float) -> None:
        """Take what nav2 commands; what is not finite counts as a stop."""
        self._velocity = velocity if velocity.finite else ZERO
        self._watchdog.feed(now)
        self._commanded = True
        self._stand(now)

    def on_answer(self, number: int, accepted: bool, now: float) -> None:
        """Take nav2's answer to a goal. One that is not waited for any more is cancelled."""
        goal = self._goal
        if goal is None or goal.number != number:
            if accepted:
                self._behaviours.cancel(number)
            return
        if accepted:
            self._accepted, self._heard_at = True, now
            if self._cancelled:
                self._behaviours.cancel(number)
        else:
            self._over(f"{goal.behaviour.value} rejected a goal: is nav2's behavior_server active?")

    def on_feedback(self, number: int, now: float) -> None:
        """Take a goal's feedback as a sign of life; how far it came is what odometry shows."""
        if self._goal is not None and self._goal.number == number:
            self._heard_at = now

    def on_gone(self, number: int) -> None:
        """Take notice that nav2 has no goal of this number to cancel."""
        if self._goal is not None and self._goal.number == number:
            self._over(f"{self._goal.behaviour.value} does not know its goal any more: was nav2 started anew?")

    def on_result(self, number: int, result: Result) -> None:
        """Take how a goal ended."""
        goal = self._goal
        if goal is None or goal.number != number:
            return
        self._goal = None
        if self._ending_at is None:
            self.ended = _meaning(goal, result, self._commanded)

    def _lateness(self, goal: Nav2Goal, now: float) -> str:
        """Return what nav2 owes for the goal under way, as the end of a sentence; empty for nothing."""
        if not self._accepted:
            return f"did not answer a goal within {ANSWER_S:g} s" if now - self._sent_at > ANSWER_S else ""
        if now - self._heard_at > SILENT_S:
            return f"was silent for {SILENT_S:g} s in the middle of a goal"
        late = now - self._sent_at > goal.allowance_s + LATE_S
        return f"did not end within its time allowance of {goal.allowance_s:.1f} s" if late else ""

    def _newest(self, now: float) -> Velocity:
        return ZERO if self._watchdog.expired(now) else self._velocity

    def _stand(self, now: float) -> None:
        """Note since when nav2 has stood. Once that was long enough, what it commands is for others."""
        if self._goal is not None:
            self._stood_at = None
        elif self._stood_at is None:
            self._stood_at = now if self._newest(now) == ZERO else None
        elif now - self._stood_at < QUIET_S and self._newest(now) != ZERO:
            self._stood_at = None

    def _over(self, problem: str) -> None:
        """Note that the goal is no more."""
        self._goal = None
        if self._ending_at is None:
            self._fail(problem)

    def _fail(self, problem: str) -> None:
        self.ended = Ended(Outcome.FAULT, f"nav2: {problem}")


class Nav2Motion(Motion):
    """One action by nav2. Raises ValueError as `Motion`.

    An action that goes on to a larger size, or was held, gets a goal for what odometry shows to be left: nav2's
    behaviours take no other goal while one runs.
    """

    def __init__(
        self,
        nav2: Nav2,
        action: NavigationAction,
        start: PlanarPose,
        now: float,
        config: MotionConfig,
        speed_scale: float = 1.0,
        response: Response | None = None,
    ) -> None:
        self._nav2, self._now = nav2, now
        self._arrived_at: float | None = None
        """When nav2 said that its goal is reached."""
        self._asked = 0.0
        """The size for which its goal was sent, metres or radians."""
        nav2.end(now)
        super().__init__(action, start, now, config, speed_scale, response)

    def extend(self, action: NavigationAction, now: float, speed_scale: float = 1.0) -> None:
        """Go on to the size of `action`; see `Motion.extend`."""
        self._arrived_at = None
        super().extend(action, now, speed_scale)

    def update(
        self, pose: PlanarPose, now: float, held: bool = False, seen: float | None = None, share: float = 1.0
    ) -> MotionStep:
        """Take odometry and the time, as `Motion.update`; return what of nav2's velocity is to be commanded."""
        if self._ended is not None:
            return self._ended
        self._now = now
        nav2 = self._nav2
        nav2.tick(now)
        if held:
            nav2.end(now)
        elif nav2.is_idle and nav2.ended is None and self._arrived_at is None and now >= self._begin_at:
            self._send(now)
        ended = nav2.ended
        stands = held or ended is not None or self._arrived_at is not None or not self._leads(nav2.driving(now))
        step = super().update(pose, now, stands, seen, share)
        if step.outcome is not Outcome.RUNNING or held:
            return step
        if ended is not None and ended.outcome is not Outcome.DONE:
            return self._end(ended.outcome, now, ended.message)
        if ended is not None and self._goal > self._asked:
            nav2.end(now)
        elif ended is not None and self._arrived_at is None:
            self._arrived_at = now
        if self._arrived_at is not None and now - self._arrived_at >= self._settling_s:
            return self._arrive(now)
        return step

    @property
    def _settling_s(self) -> float:
        """How long late odometry takes to show what nav2 drove."""
        return self._response.wait if self._response.lag else 0.0

    def _send(self, now: float) -> None:
        config, behaviour = self._config, Behaviour.SPIN if self.turning else Behaviour.DRIVE
        tolerance, least = (config.tolerance_rad, LEAST_RAD) if self.turning else (config.tolerance_m, LEAST_M)
        self._asked = self._goal
        amount = self._sign * max(self.remaining - tolerance, least)
        allowance = max(self._began + self.time_cap - now, LEAST_ALLOWANCE_S)
        self._nav2.begin(behaviour, amount, self._fastest, allowance, now)

    def _arrive(self, now: float) -> MotionStep:
        """End the action that nav2 says is done, unless odometry shows otherwise."""
        if self.progress >= LEAST_SHARE * self._goal:
            return self._end(Outcome.DONE, now, "")
        shown = f"odometry shows {self._amount(self.progress)} of {self._amount(self._goal)}"
        words = f"nav2 says that it is there, {shown}: its transforms and odom must be of the same odometry"
        return self._end(Outcome.FAULT, now, words)

    def _leads(self, velocity: Velocity) -> bool:
        """Return whether a velocity leads where the action does."""
        return velocity.wz * self._sign > 0.0 if self.turning else velocity.vx > 0.0

    def _command(self, remaining: float, pose: PlanarPose, share: float) -> Velocity:
        """Return nav2's velocity, no faster than the action's own would be here."""
        own, nav2 = super()._command(remaining, pose, share), self._nav2.driving(self._now)
        if self.turning:
            return Velocity(wz=math.copysign(min(abs(own.wz), abs(nav2.wz)), own.wz))
        return Velocity(vx=min(own.vx, nav2.vx), wz=own.wz)

    def _end(self, outcome: Outcome, now: float, message: str) -> MotionStep:
        self._nav2.end(now, GRACE_S if outcome is Outcome.DONE else 0.0)
        return super()._end(outcome, now, message)


def _meaning(goal: Nav2Goal, result: Result, commanded: bool) -> Ended:
    """Return what nav2's result means for the action."""
    name = goal.behaviour.value
    if result.status == "succeeded":
        return Ended(Outcome.DONE, "")
    if result.status == "canceled":
        return Ended(Outcome.FAULT, f"nav2: {name} was cancelled by somebody else")
    if result.code is None:
        return Ended(Outcome.BLOCKED, f"nav2: {name} aborted; this version gives no reason, its log does")
    words = f"nav2: {name} aborted with {result.name or 'error_code'} ({result.code})"
    if result.name == "TIMEOUT" and not commanded:
        why = "no velocity came on cmd_vel: is nav2's of another name, or stamped on one side only (stamped_cmd_vel)?"
        return Ended(Outcome.FAULT, f"{words}, and {why}")
    blocked = result.name in ("COLLISION_AHEAD", "TIMEOUT")
    return Ended(Outcome.BLOCKED if blocked else Outcome.FAULT, f"{words}: {result.words}" if result.words else words)
