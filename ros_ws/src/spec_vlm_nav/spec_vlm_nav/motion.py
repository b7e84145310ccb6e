"""One mid-level action as closed-loop motion on odometry: so far, then brake; blocked or late, then give up.

What odometry shows is compared with what was commanded in the last `blocked_after_s` seconds, which leave time for a
robot that begins to walk half a second late: a motion that believed any odometry would walk until the time cap on one
that shows a tenth of the way.

Odometry may come late. How late shows where a motion begins (`Response`). A motion on late odometry is slower, ends by
what is shown and what was commanded since, and then stands until odometry shows all of it; what remains is made up for.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from msgspec import Meta

from spec_vlm_nav.safety import ZERO, Velocity
from speculation.language.prompts import NavigationAction
from speculation.settings import CheckedSettings

CREEP_SPEED, CREEP_TURN = 0.10, 0.15
"""Least speed (m/s, rad/s) until the goal is reached, also where a share of the speeds would be less."""
FORWARD_GAIN, TURN_GAIN, HEADING_GAIN = 2.0, 2.5, 1.0
"""Speed per metre or radian that remains, and turn rate per radian off the heading, 1/s."""
BLOCKED_M, BLOCKED_RAD = 0.03, math.radians(2.0)
"""Less progress than this in `blocked_after_s`: blocked."""
JUDGED_M, JUDGED_RAD, LEAST_SHARE = 0.2, 0.3, 0.25
"""Of at least so much that was commanded in `blocked_after_s`, less than this share: blocked."""
MOST_M, MOST_RAD, MOST_SHARE = 0.15, 0.25, 2.5
"""More than this share of what was commanded and so much on top: the odometry is wrong, or something pushes."""
ASTRAY_M, ASTRAY_SHARE, ASTRAY_SWING = 0.1, 0.6, 0.4
"""More metres than this in a direction that was not commanded: odometry is wrong, or something pushes. On top comes a
share of what was commanded ahead, for a robot that slides along a wall, or metres a radian, for odometry of a sensor
ahead of the base."""
SCALE, SCALE_M, SCALE_RAD = 1.6, 0.02, 0.02
"""A motion that ends with more than this share of what was commanded, and so much on top: its scale is wrong."""
ONSET_M, ONSET_RAD = 0.02, math.radians(2.0)
"""So much progress shows that a motion has begun."""
REACTION_S = 0.2
"""What a robot may take to set off; what is more is the lag of its odometry."""
LAG_LIMIT_S = 1.5
"""Odometry that is later is not moved on: at the speed that is left (0.18 of 0.4 m/s) a robot is a quarter of a metre
further than it shows, and pushes for 2.7 s against what blocks it."""
SETTLE_S = 0.3
"""What late odometry gets at most on top of its lag to show the end of a motion: `REACTION_S` may be lag too."""
LATE_TOLERANCE = 3.0
"""A robot that stood for late odometry does not set off again for less than so many tolerances."""
UNKNOWN_S = 3.5
"""How long a robot stands and waits for odometry to move before it is taken for blocked, where no lag was measured yet:
go2_ros2_sdk has been 2 to 3 s late."""
ONSET_WITHIN_S = 5.0
"""What moves later after a command is no late odometry."""
FORGET_S = 10.0
"""A lag that is too much is measured anew after so long, by one more motion."""
COMMAND_HOLD_S = 0.25
"""A command counts for no longer, because go2_bridge stops the robot when it gets no newer one."""


class Outcome(Enum):
    """How a motion stands."""

    RUNNING = "running"
    DONE = "done"
    BLOCKED = "blocked"
    TIMEOUT = "timeout"
    NO_ODOMETRY = "no odometry"
    """Odometry cannot be moved on."""
    FAULT = "fault"
    """The service that moves the robot failed, for another reason than something in its way."""


@dataclass(frozen=True)
class PlanarPose:
    """Pose of the base by odometry: metres, radians counter-clockwise."""

    x: float
    y: float
    yaw: float

    @property
    def finite(self) -> bool:
        """Whether no component is NaN or infinite."""
        return math.isfinite(self.x) and math.isfinite(self.y) and math.isfinite(self.yaw)


class MotionConfig(CheckedSettings, frozen=True):
    """Speeds and tolerances. Raises ValueError, naming the setting, for a value outside its limits."""

    forward_speed: Annotated[float, Meta(ge=0.1, le=1.0, description="speed ahead, m/s")] = 0.40
    turn_speed: Annotated[float, Meta(ge=0.15, le=1.0, description="turn rate, rad/s")] = 0.50
    tolerance_m: Annotated[
        float, Meta(ge=0.005, le=0.1, description="a distance is covered when this little remains, m")
    ] = 0.02
    tolerance_rad: Annotated[
        float, Meta(ge=0.005, le=0.2, description="a turn is made when this little remains, rad")
    ] = math.radians(1.5)
    cap_factor: Annotated[
        float, Meta(ge=1.0, le=10.0, description="time cap of an action: this many times its nominal time ...")
    ] = 2.0
    cap_margin_s: Annotated[float, Meta(ge=0.0, le=10.0, description="... plus this, s")] = 2.0
    blocked_after_s: Annotated[
        float, Meta(ge=0.3, le=10.0, description="time that a robot gets to show progress; without it is blocked, s")
    ] = 1.2
    metres_a_minute: Annotated[
        float, Meta(ge=2.0, le=60.0, description="the robot is moved no further within a minute, m")
    ] = 12.0
    degrees_a_minute: Annotated[
        float, Meta(ge=180.0, le=3600.0, description="... and turned no further within a minute, degrees")
    ] = 1500.0
    """Searches took 5.4 m and 1363 degrees at most, at the simulator's speeds."""


@dataclass(frozen=True)
class MotionStep:
    """What to command now."""

    velocity: Velocity
    """Zero at the end."""
    outcome: Outcome
    progress: float
    """Metres or radians in the commanded direction."""
    message: str = ""
    """Why it ended, in a sentence; empty while it runs and when it is done."""


class Response:
    """How a robot's odometry answers what is commanded; learned by its motions and kept from one to the next.

    known: odometry comes at once, and nothing is learned of it.
    """

    def __init__(self, known: bool = False) -> None:
        self._learns = not known
        self.lag = 0.0
        """How late odometry is, seconds, without `REACTION_S`."""
        self.known = known
        """Whether that was measured."""
        self.commanded_at = -math.inf
        """When a motion was last commanded, steady clock, seconds."""
        self.excess = 0
        """How many motions in a row ended with more than was commanded."""
        self._measured_at = -math.inf

    @property
    def wait(self) -> float:
        """Seconds after which odometry shows the end of a motion."""
        if not self.known:
            return UNKNOWN_S
        return self.lag + min(self.lag, SETTLE_S)

    def measured(self, delay: float, now: float) -> None:
        """Take the seconds from a command to what it moved by odometry."""
        if not self._learns:
            return
        self.lag, self.known, self._measured_at = max(delay - REACTION_S, 0.0), True, now

    def problem(self, now: float) -> str:
        """Return why odometry is too late to move on, in a sentence; empty if it is not, or was not measured lately."""
        if self.lag <= LAG_LIMIT_S:
            return ""
        if now - self._measured_at > FORGET_S:
            self.lag, self.known = 0.0, False
            return ""
        return (
            f"odometry is {self.lag:.1f} s late, more than {LAG_LIMIT_S:g} s: too late to move on; "
            "take it from the robot itself, over a cable"
        )


@dataclass(frozen=True)
class _Moment:
    """What odometry showed at a time; progress in metres or radians since the motion began."""

    seen: float
    progress: float
    pose: PlanarPose


class Motion:
    """One action from its start pose. Raises ValueError for an action that moves nothing (stop).

    Its answer may go on while it runs, and after it is done: `extend` then sets another size from the same start pose.
    response: what is known of the robot's odometry; without it odometry is taken to come at once.
    """

    def __init__(
        self,
        action: NavigationAction,
        start: PlanarPose,
        now: float,
        config: MotionConfig,
        speed_scale: float = 1.0,
        response: Response | None = None,
    ) -> None:
        self._config, self._start, self._last = config, start, start
        self._response = Response(known=True) if response is None else response
        # Odometry that is late still shows the motion before.
        self._begin_at = max(now, self._response.commanded_at + self._response.wait) if self._response.lag else now
        self._began = self._ended_at = self._stood_at = now
        self._turned = self._speed = 0.0
        self.progress = 0.0
        """Metres or radians in the commanded direction, by odometry that can be moved on."""
        self._times, self._commands = [now], [0.0]
        """How much was commanded until when, metres or radians since the motion began."""
        self._history = deque([_Moment(now, 0.0, start)])
        self._begun = self._held = False
        """Whether odometry has shown that it moves; whether it was held after it set off."""
        self._settled = self._history[0]
        """When odometry last showed all that was commanded."""
        self._braked_at: float | None = None
        """Since when the robot stands until odometry shows all that was commanded."""
        self._suspected: _Moment | None = None
        """Since when there may have been no progress, while it stands so."""
        self._ended: MotionStep | None = None
        self._set(action, speed_scale)

    @property
    def remaining(self) -> float:
        """Metres or radians that are left; at least 0."""
        return max(self._goal - self.progress, 0.0)

    def extend(self, action: NavigationAction, now: float, speed_scale: float = 1.0) -> None:
        """Go on to the size of `action`, which is of the same kind, at the share `speed_scale` of the speeds.

        The start pose stays, and so does what was covered: a size that is reached already is done at the next update.
        A motion that is done is resumed from where the robot stands, if odometry shows that nothing moved it since; one
        that ended otherwise stays ended. Raises ValueError for another kind.
        """
        if action.kind is not self.action.kind:
            raise ValueError(f"an action that is {self.action.kind.value!r} cannot become {action.kind.value!r}")
        self._set(action, speed_scale)
        self._braked_at = self._suspected = None
        if self._ended is not None and self._ended.outcome is Outcome.DONE:
            self._began += now - self._ended_at
            self._stood(now)
            self._ended = None

    def watch(self, pose: PlanarPose, seen: float) -> None:
        """Take odometry that arrived at `seen` after the motion ended: its beginning may show only now."""
        if pose.finite:
            self._notice(self._shown(pose), seen)

    def update(
        self, pose: PlanarPose, now: float, held: bool = False, seen: float | None = None, share: float = 1.0
    ) -> MotionStep:
        """Take the newest odometry and the time (steady clock, seconds); return what to command.

        held: the robot is kept standing on purpose: no sign of an obstacle, and no part of the time cap. seen: when
        that odometry arrived; now if not given. share: how much of the speeds is allowed, 0 to 1. An ended motion
        stays ended.
        """
        if self._ended is not None:
            return self._ended
        if not pose.finite:
            return self._end(Outcome.NO_ODOMETRY, now, f"odometry is not finite ({pose.x}, {pose.y}, {pose.yaw})")
        config, response, seen = self._config, self._response, now if seen is None else min(seen, now)
        if now < self._begin_at:
            self._start = self._last = pose
            self._began = self._stood_at = now
            self._settled = _Moment(seen, 0.0, pose)
            self._history = deque([self._settled])
            return MotionStep(ZERO, Outcome.RUNNING, 0.0)
        progress = self._shown(pose)
        if held:
            self._began += max(now - self._times[-1], 0.0)
        commanded = self._count(now)
        self._notice(progress, seen)
        self._remember(progress, pose, seen)
        late = response.problem(now)
        if late:
            return self._end(Outcome.NO_ODOMETRY, now, late)
        since, at = self._suspected or self._history[0], seen - response.lag
        moved = progress - since.progress
        asked = self._commanded(at) - self._commanded(since.seen - response.lag)
        shown = f"odometry shows {self._amount(moved)} of {self._amount(asked)} commanded in {seen - since.seen:.1f} s"
        wrong = self._wrong(moved, pose, since, commanded, shown)
        if wrong:
            return self._end(Outcome.NO_ODOMETRY, now, f"{wrong}: it is wrong, or something pushes the robot")
        self.progress = progress
        tolerance = config.tolerance_rad if self.turning else config.tolerance_m
        remaining = self._goal - progress - (commanded - self._commanded(at))
        share *= config.blocked_after_s / (config.blocked_after_s + response.lag)
        # Before odometry has shown anything, the robot goes no further than its goal by what was commanded.
        tried = commanded - self._commanded(self._settled.seen)
        blind = 0.0 if response.known else self._settled.progress + tried
        if self._braked_at is None and min(remaining, self._goal - blind) <= tolerance:
            worth = tried >= 2.0 * (BLOCKED_RAD if self.turning else BLOCKED_M)
            self._braked_at, self._suspected = now, self._settled if worth else None
        if self._braked_at is None and not held:
            if now - self._began > self.time_cap / share + 2.0 * response.wait:
                words = f"odometry shows {self._amount(progress)} of {self._amount(commanded)} commanded"
                return self._end(Outcome.TIMEOUT, now, f"the time cap of {self.time_cap:.1f} s ended it; {words}")
            if seen - since.seen >= config.blocked_after_s and self._stuck(moved, asked):
                self._braked_at, self._suspected = now, since
        if self._braked_at is not None and seen - response.wait >= self._braked_at:
            if self._goal - progress <= (LATE_TOLERANCE if response.lag else 1.0) * tolerance:
                return self._done(progress, commanded, now)
            if self._suspected is not None and self._stuck(moved, asked):
                late = "" if response.known else f", or more than {UNKNOWN_S:g} s late"
                words = f"{shown}: something blocks the robot, or its odometry is wrong{late}"
                return self._end(Outcome.BLOCKED, now, words)
            self._braked_at = self._suspected = None
            self._stood(now)
            self._settled = self._history[0]
        if held or self._braked_at is not None:
            self._held = self._held or (held and commanded > 0.0)
            self._speed = 0.0
            if held:
                self._stood(now)
            return MotionStep(ZERO, Outcome.RUNNING, progress)
        velocity = self._command(remaining, pose, share)
        self._speed = abs(velocity.wz) if self.turning else velocity.vx
        response.commanded_at = now
        return MotionStep(velocity, Outcome.RUNNING, progress)

    def _set(self, action: NavigationAction, speed_scale: float) -> None:
        signed = action.radians or action.metres
        if signed == 0.0:
            raise ValueError(f"action '{action.text}' is no motion")
        self.action, self.turning = action, action.radians != 0.0
        self._goal, self._sign = abs(signed), math.copysign(1.0, signed)
        config = self._config
        full, least = (config.turn_speed, CREEP_TURN) if self.turning else (config.forward_speed, CREEP_SPEED)
        self._fastest = max(least, speed_scale * full)
        self.time_cap = self._goal / self._fastest * config.cap_factor + config.cap_margin_s

    def _stood(self, now: float) -> None:
        """Judge what odometry shows of it from now on by what is commanded from now on."""
        self._speed, self._stood_at = 0.0, now
        self._history = deque([replace(self._history[-1], seen=now)])

    def _shown(self, pose: PlanarPose) -> float:
        """Return the progress that odometry shows."""
        start = self._start
        self._turned += wrap(pose.yaw - self._last.yaw)
        self._last = pose
        if self.turning:
            return self._sign * self._turned
        return (pose.x - start.x) * math.cos(start.yaw) + (pose.y - start.y) * math.sin(start.yaw)

    def _command(self, remaining: float, pose: PlanarPose, share: float) -> Velocity:
        if self.turning:
            speed = max(CREEP_TURN, min(share * self._fastest, TURN_GAIN * remaining))
            return Velocity(wz=self._sign * speed)
        speed = max(CREEP_SPEED, min(share * self._fastest, FORWARD_GAIN * remaining))
        # Late odometry makes a strong correction swing.
        correction = HEADING_GAIN / (1.0 + 2.0 * self._response.lag) * wrap(self._start.yaw - pose.yaw)
        return Velocity(vx=speed, wz=min(max(correction, -CREEP_TURN), CREEP_TURN))

    def _count(self, now: float) -> float:
        """Return what was commanded until now, and remember it."""
        times, commands = self._times, self._commands
        now = max(now, times[-1])
        commands.append(commands[-1] + self._speed * min(now - times[-1], COMMAND_HOLD_S))
        times.append(now)
        if len(commands) > 2 and commands[-3] == commands[-1]:
            del commands[-2], times[-2]
        return commands[-1]

    def _commanded(self, moment: float) -> float:
        """Return what was commanded until then."""
        times, commands = self._times, self._commands
        index = bisect_right(times, moment)
        if index in (0, len(times)):
            return commands[0] if index == 0 else commands[-1]
        before, after = times[index - 1], times[index]
        return commands[index - 1] + (commands[index] - commands[index - 1]) * (moment - before) / (after - before)

    def _notice(self, progress: float, seen: float) -> None:
        """Measure how late the beginning of the motion shows."""
        # A robot that was held sets off twice, which seems to take long: better than nothing, worse than what is known.
        if self._begun or (self._held and self._response.known) or progress < (ONSET_RAD if self.turning else ONSET_M):
            return
        index = bisect_left(self._commands, progress)
        if index < len(self._commands) and seen - self._times[index] <= ONSET_WITHIN_S:
            self._begun = True
            self._response.measured(seen - self._times[index], seen)

    def _remember(self, progress: float, pose: PlanarPose, seen: float) -> None:
        """Add what odometry shows to the history, and forget what is too old to matter."""
        history = self._history
        if seen > history[-1].seen:
            history.append(_Moment(seen, progress, pose))
        oldest = max(seen - self._config.blocked_after_s, self._stood_at + self._response.lag)
        while len(history) > 2 and history[1].seen <= oldest:
            history.popleft()

    def _wrong(self, moved: float, pose: PlanarPose, since: _Moment, commanded: float, shown: str) -> str:
        """Return what odometry shows that nobody commanded, as the beginning of a sentence; empty for nothing."""
        # What odometry shows now may have been commanded as long ago as it may be late.
        asked = commanded - self._commanded(since.seen - self._response.wait)
        if not abs(moved) <= MOST_SHARE * asked + (MOST_RAD if self.turning else MOST_M):
            return shown
        dx, dy = pose.x - since.pose.x, pose.y - since.pose.y
        aside = abs(dy * math.cos(self._start.yaw) - dx * math.sin(self._start.yaw))
        if self.turning:
            aside = math.hypot(dx, dy)
        if not aside <= ASTRAY_M + (ASTRAY_SWING if self.turning else ASTRAY_SHARE) * asked:
            where = "of way in a turn" if self.turning else "sideways"
            return f"odometry shows {aside:.2f} m {where} that nobody commanded"
        return ""

    def _done(self, progress: float, commanded: float, now: float) -> MotionStep:
        """End it, unless this is the second in a row of which odometry shows much more than was commanded."""
        response = self._response
        if self._held or progress <= SCALE * commanded + (SCALE_RAD if self.turning else SCALE_M):
            response.excess = 0
            return self._end(Outcome.DONE, now, "")
        response.excess += 1
        words = f"odometry shows {self._amount(progress)} of {self._amount(commanded)} commanded"
        outcome = Outcome.DONE if response.excess < 2 else Outcome.NO_ODOMETRY
        return self._end(outcome, now, f"{words}: its scale is wrong, or something pushes the robot")

    def _stuck(self, moved: float, commanded: float) -> bool:
        """Return whether odometry shows no progress worth the name, or too little of what was commanded."""
        if moved < (BLOCKED_RAD if self.turning else BLOCKED_M):
            return True
        return commanded >= (JUDGED_RAD if self.turning else JUDGED_M) and (moved < LEAST_SHARE * commanded)

    def _end(self, outcome: Outcome, now: float, message: str) -> MotionStep:
        self._ended, self._ended_at = MotionStep(ZERO, outcome, self.progress, message), now
        return self._ended

    def _amount(self, value: float) -> str:
        return f"{math.degrees(value):.0f} degrees" if self.turning else f"{value:.2f} m"


def wrap(angle: float) -> float:
    """Return the same angle within [-pi, pi)."""
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def yaw_of(x: float, y: float, z: float, w: float) -> float:
    """Return the heading of a quaternion in ROS order (x, y, z, w)."""
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
