"""One mid-level action as closed-loop motion on odometry: so far, then brake; blocked or late, then give up.

What odometry shows is compared with what was commanded in the last `blocked_after_s` seconds, which leave time for a
robot that begins to walk half a second late: a motion that believed any odometry would walk until the time cap on one
that shows a tenth of the way.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from spec_vlm_nav.safety import ZERO, Velocity
from speculation.prompts import NavigationAction
from speculation.settings import check

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


class MotionConfig(msgspec.Struct, frozen=True):
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

    def __post_init__(self) -> None:
        check(self)


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


@dataclass(frozen=True)
class _Moment:
    """What odometry shows at a time, and what was commanded until then; metres or radians since the motion began."""

    now: float
    progress: float
    commanded: float


class Motion:
    """One action from its start pose. Raises ValueError for an action that moves nothing (stop).

    Its answer may go on while it runs, and after it is done: `extend` then sets another size from the same start pose.
    """

    def __init__(
        self, action: NavigationAction, start: PlanarPose, now: float, config: MotionConfig, speed_scale: float = 1.0
    ) -> None:
        self._config, self._start, self._last = config, start, start
        self._began = self._ended_at = now
        self._turned = self._commanded = self._speed = 0.0
        self.progress = 0.0
        """Metres or radians in the commanded direction, by odometry that can be moved on."""
        self._history = deque([_Moment(now, 0.0, 0.0)])
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
        if self._ended is not None and self._ended.outcome is Outcome.DONE:
            self._began += now - self._ended_at
            self._stood(now)
            self._ended = None

    def update(self, pose: PlanarPose, now: float, held: bool = False) -> MotionStep:
        """Take the newest odometry and the time (steady clock, seconds); return what to command.

        held: the robot is kept standing on purpose, which is no sign of an obstacle. An ended motion stays ended.
        """
        if self._ended is not None:
            return self._ended
        if not pose.finite:
            return self._end(Outcome.NO_ODOMETRY, now, f"odometry is not finite ({pose.x}, {pose.y}, {pose.yaw})")
        config = self._config
        self._turned += wrap(pose.yaw - self._last.yaw)
        self._last = pose
        progress = self._sign * self._turned if self.turning else self._ahead(pose)
        self._remember(progress, now)
        since = self._history[0]
        moved, commanded, seconds = progress - since.progress, self._commanded - since.commanded, now - since.now
        shown = f"odometry shows {self._amount(moved)} of {self._amount(commanded)} commanded in {seconds:.1f} s"
        if not abs(moved) <= MOST_SHARE * commanded + (MOST_RAD if self.turning else MOST_M):
            return self._end(Outcome.NO_ODOMETRY, now, f"{shown}: it is wrong, or something pushes the robot")
        self.progress = progress
        remaining = self._goal - progress
        if remaining <= (config.tolerance_rad if self.turning else config.tolerance_m):
            return self._end(Outcome.DONE, now, "")
        if held:
            self._stood(now)
            return MotionStep(ZERO, Outcome.RUNNING, progress)
        if now - self._began > self.time_cap:
            return self._end(Outcome.TIMEOUT, now, f"the time cap of {self.time_cap:.1f} s ended it; {shown}")
        if seconds >= config.blocked_after_s and self._stuck(moved, commanded):
            return self._end(Outcome.BLOCKED, now, f"{shown}: something blocks the robot, or its odometry is wrong")
        velocity = self._command(remaining, pose)
        self._speed = abs(velocity.wz) if self.turning else velocity.vx
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
        """Judge what odometry shows from now on by what is commanded from now on."""
        self._speed = 0.0
        self._history = deque([_Moment(now, self._history[-1].progress, self._commanded)])

    def _ahead(self, pose: PlanarPose) -> float:
        start = self._start
        return (pose.x - start.x) * math.cos(start.yaw) + (pose.y - start.y) * math.sin(start.yaw)

    def _command(self, remaining: float, pose: PlanarPose) -> Velocity:
        if self.turning:
            speed = min(self._fastest, max(CREEP_TURN, TURN_GAIN * remaining))
            return Velocity(wz=self._sign * speed)
        speed = min(self._fastest, max(CREEP_SPEED, FORWARD_GAIN * remaining))
        correction = HEADING_GAIN * wrap(self._start.yaw - pose.yaw)
        return Velocity(vx=speed, wz=min(max(correction, -CREEP_TURN), CREEP_TURN))

    def _remember(self, progress: float, now: float) -> None:
        """Add this moment, and what was commanded until then, to the history; forget what is too old to matter."""
        history = self._history
        self._commanded += self._speed * min(max(now - history[-1].now, 0.0), COMMAND_HOLD_S)
        history.append(_Moment(now, progress, self._commanded))
        while history[1].now <= now - self._config.blocked_after_s:
            history.popleft()

    def _stuck(self, moved: float, commanded: float) -> bool:
        """Whether odometry shows no progress worth the name, or too little of what was commanded."""
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
