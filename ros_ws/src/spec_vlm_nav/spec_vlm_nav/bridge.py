"""Velocities in, a robot's requests out, last before the robot: clamps, limits slew, watches, and confirms its stops.

No ROS: `nodes/go2_bridge.py` gives it messages and time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from spec_vlm_nav.odometry import OdometryCheck, OdometrySample
from spec_vlm_nav.parameters import BridgeSettings
from spec_vlm_nav.robot import Answer, Confirmed, Robot
from spec_vlm_nav.safety import ZERO, Limits, SlewLimiter, Velocity, Watchdog

STOP_RETRY_S, STAND_RETRY_S = 0.1, 1.0
STILL = 0.03
"""Odometry below this (m/s, rad/s) is a robot that stands."""
MAX_DT = 0.25
"""A bridge that was held up does not jump to a higher speed: longer ticks count as this many seconds."""

R = TypeVar("R")


class Log(Protocol):
    """A logger as rclpy has it; `throttle_duration_sec` limits how often a line is logged."""

    def info(self, message: str, **options: Any) -> Any:
        """Log a normal event."""

    def warning(self, message: str, **options: Any) -> Any:
        """Log what stops the robot."""

    def error(self, message: str, **options: Any) -> Any:
        """Log what the robot refused."""


class Bridge(Generic[R]):
    """Sends move requests while velocities arrive and stop requests, until confirmed, when they do not.

    Time is given: steady clock, seconds. Raises ValueError for limits above the robot's own.
    """

    def __init__(
        self,
        robot: Robot[R],
        limits: Limits,
        settings: BridgeSettings,
        now: float,
        send: Callable[[R], None],
        next_identity: Callable[[], int],
        log: Log,
    ) -> None:
        for name in ("vx", "vy", "wz"):
            limit, most = getattr(limits, name), getattr(robot.fastest, name)
            if limit > most:
                raise ValueError(f"limit {name} {limit:g} is above {most:g}, the most that {settings.robot} allows")
        self.ready = False
        """Whether the robot stands and obeys velocities."""
        self._robot, self._limits = robot, limits
        self._send, self._next_identity, self._log = send, next_identity, log
        self._watchdog = Watchdog(settings.cmd_vel_timeout)
        self._slew = SlewLimiter(limits)
        self._wanted = ZERO
        self._odometry, self._speed = OdometryCheck(), 0.0
        self._last_tick = now
        self._ended = False
        self._stopping: Confirmed[R] | None = None
        self._standing = [Confirmed(make, next_identity, STAND_RETRY_S) for make in robot.stand_up]
        self._settle, self._stood_at = settings.stand_up_s, math.inf

    def end(self) -> None:
        """Send a stop request for the last time; nothing is sent after it."""
        self._ended = True
        self._send(self._robot.stop(self._next_identity()))

    def tick(self, now: float) -> None:
        """Send what is due. To be called at 20 Hz: a robot obeys a move request for a limited time."""
        dt, self._last_tick = min(now - self._last_tick, MAX_DT), now
        if self._ended:
            # Ticks go on while the node closes; a move request now would undo the stop.
            return
        if not self.ready:
            self._get_ready(now)
        elif self._watchdog.expired(now):
            self._keep_stopping(now, "cmd_vel is silent")
        elif not self._wanted.finite:
            self._keep_stopping(now, "cmd_vel is not finite")
        else:
            self._stopping = None
            self._send(self._robot.move(self._slew.step(self._wanted, dt), self._limits, self._next_identity()))

    def on_velocity(self, velocity: Velocity, now: float) -> None:
        """Take a commanded velocity."""
        self._wanted = velocity
        self._watchdog.feed(now)
        if not velocity.finite and self.ready and not self._ended:
            # Not at the next tick but now: a sender of NaN has lost control.
            self._keep_stopping(now, "cmd_vel is not finite")

    def on_odometry(self, sample: OdometrySample) -> None:
        """Take odometry with its twist."""
        if self._odometry.take(sample) is None or sample.twist is None:
            # Odometry that is wrong shows no standing robot: the stop is repeated until it is sound again.
            self._speed = math.inf
        else:
            vx, vy, wz = sample.twist
            self._speed = max(math.hypot(vx, vy), abs(wz))

    def on_answer(self, answer: Answer) -> None:
        """Take the robot's answer to a request."""
        if answer.problem:
            self._log.error(answer.problem, throttle_duration_sec=1.0)
        for request in (*self._standing, self._stopping):
            if request is not None:
                request.answered(answer)

    def _get_ready(self, now: float) -> None:
        """Have every request of `stand_up` confirmed in turn, with time to settle after the first."""
        step = next((index for index, request in enumerate(self._standing) if not request.done), None)
        if step == 0:
            self._send_due(self._standing[0], now)
            self._log.info("stand up; waiting for the robot's answer", throttle_duration_sec=5.0)
        elif self._standing and self._stood_at == math.inf:
            self._stood_at = now
        elif self._standing and now - self._stood_at < self._settle:
            return
        elif step is not None:
            self._send_due(self._standing[step], now)
        else:
            self.ready = True
            self._log.info("the robot stands: taking cmd_vel")

    def _keep_stopping(self, now: float, why: str) -> None:
        """Repeat the stop request until the robot answered it and, where odometry is known, stands."""
        if self._stopping is None:
            self._stopping = Confirmed(self._robot.stop, self._next_identity, STOP_RETRY_S)
            self._slew.reset()
            self._log.warning(f"stop: {why}")
        if self._speed > STILL:
            self._stopping.reopen()
        if self._odometry.problem:
            self._log.warning(f"the stop is repeated: {self._odometry.problem}", throttle_duration_sec=5.0)
        self._send_due(self._stopping, now)

    def _send_due(self, confirmed: Confirmed[R], now: float) -> None:
        request = confirmed.due(now)
        if request is not None:
            self._send(request)
