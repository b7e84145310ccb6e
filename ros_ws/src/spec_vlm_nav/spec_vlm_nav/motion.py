"""One mid-level action as closed-loop motion on odometry: so far, then brake; blocked or late, then give up."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

from spec_vlm_nav.safety import ZERO, Velocity
from speculation.prompts import NavigationAction


class Outcome(Enum):
    """How a motion stands."""

    RUNNING = "running"
    DONE = "done"
    BLOCKED = "blocked"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class PlanarPose:
    """Where odometry says the base is: metres, radians counter-clockwise."""

    x: float
    y: float
    yaw: float


@dataclass(frozen=True)
class MotionConfig:
    """Speeds and tolerances. `*_gain` is the speed asked for per metre or radian that remains (1/s)."""

    forward_speed: float = 0.40
    turn_speed: float = 0.50
    creep_speed: float = 0.10
    creep_turn: float = 0.15
    forward_gain: float = 2.0
    turn_gain: float = 2.5
    heading_gain: float = 1.0
    tolerance_m: float = 0.02
    tolerance_rad: float = math.radians(1.5)
    cap_factor: float = 2.0
    cap_margin_s: float = 2.0
    blocked_after_s: float = 1.2
    blocked_m: float = 0.03
    blocked_rad: float = math.radians(2.0)


@dataclass(frozen=True)
class MotionStep:
    """What to command now. `progress` is in metres or radians in the asked direction; velocity is zero at the end."""

    velocity: Velocity
    outcome: Outcome
    progress: float


class Motion:
    """One action from its start pose. Raises ValueError for an action that moves nothing (stop)."""

    def __init__(self, action: NavigationAction, start: PlanarPose, now: float, config: MotionConfig) -> None:
        self.action = action
        self.turning = action.radians != 0.0
        signed = action.radians if self.turning else action.metres
        if signed == 0.0:
            raise ValueError(f"action '{action.text}' is no motion")
        self._goal = abs(signed)
        self._sign = math.copysign(1.0, signed)
        self._config, self._start, self._last = config, start, start
        self._began = now
        speed = config.turn_speed if self.turning else config.forward_speed
        self.time_cap = self._goal / speed * config.cap_factor + config.cap_margin_s
        self._turned = 0.0
        self._history: deque[tuple[float, float]] = deque([(now, 0.0)])

    def update(self, pose: PlanarPose, now: float) -> MotionStep:
        """Take the newest odometry and the time (steady clock, seconds); return what to command."""
        config = self._config
        self._turned += wrap(pose.yaw - self._last.yaw)
        self._last = pose
        progress = self._sign * self._turned if self.turning else self._ahead(pose)
        remaining = self._goal - progress
        if remaining <= (config.tolerance_rad if self.turning else config.tolerance_m):
            return MotionStep(ZERO, Outcome.DONE, progress)
        if now - self._began > self.time_cap:
            return MotionStep(ZERO, Outcome.TIMEOUT, progress)
        if self._stuck(progress, now):
            return MotionStep(ZERO, Outcome.BLOCKED, progress)
        return MotionStep(self._command(remaining, pose), Outcome.RUNNING, progress)

    def paused(self, now: float) -> None:
        """Tell that the robot was held still on purpose until `now`; that is no sign of an obstacle."""
        self._history.clear()
        self._history.append((now, -math.inf))

    def _ahead(self, pose: PlanarPose) -> float:
        start = self._start
        return (pose.x - start.x) * math.cos(start.yaw) + (pose.y - start.y) * math.sin(start.yaw)

    def _command(self, remaining: float, pose: PlanarPose) -> Velocity:
        config = self._config
        if self.turning:
            speed = min(config.turn_speed, max(config.creep_turn, config.turn_gain * remaining))
            return Velocity(wz=self._sign * speed)
        speed = min(config.forward_speed, max(config.creep_speed, config.forward_gain * remaining))
        correction = config.heading_gain * wrap(self._start.yaw - pose.yaw)
        return Velocity(vx=speed, wz=min(max(correction, -config.creep_turn), config.creep_turn))

    def _stuck(self, progress: float, now: float) -> bool:
        """Whether the last `blocked_after_s` seconds brought no progress worth the name."""
        config, history = self._config, self._history
        history.append((now, progress))
        while len(history) > 1 and history[1][0] <= now - config.blocked_after_s:
            history.popleft()
        since, before = history[0]
        least = config.blocked_rad if self.turning else config.blocked_m
        return now - since >= config.blocked_after_s and progress - before < least


def wrap(angle: float) -> float:
    """Return the same angle within [-pi, pi)."""
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def yaw_of(x: float, y: float, z: float, w: float) -> float:
    """Return the heading of a quaternion in ROS order (x, y, z, w)."""
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
