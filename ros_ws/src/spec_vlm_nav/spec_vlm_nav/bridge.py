"""Velocities in, a robot's requests out, last before the robot: clamps, limits slew, watches, and confirms its stops.

No ROS: `nodes/go2_bridge.py` gives it messages and time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from spec_vlm_nav.diagnostics import Arrivals, Level, Log, Status
from spec_vlm_nav.guard import Guard
from spec_vlm_nav.interlock import LATCHES, Interlock
from spec_vlm_nav.odometry import OdometryCheck, OdometrySample
from spec_vlm_nav.parameters import BridgeSettings
from spec_vlm_nav.robot import Answer, Confirmed, Posture, Robot, RobotState
from spec_vlm_nav.safety import ZERO, Limits, SlewLimiter, Velocity, Watchdog
from spec_vlm_nav.stand_detection import StandUp, Stillness

RATE_HZ = 50.0
"""How often `tick` is called at least. A robot obeys a move request for a limited time."""
LATE_S = 0.0005
"""A tick so long after a timeout sees that it is over."""
STOP_RETRY_S = 0.1
END_S = 1.0
"""How long the stop is repeated at the end, until it is confirmed."""
PROBE_S = 1.0
"""Every so often a move request asks for an answer: a robot that no longer stands refuses it."""
STATE_OLD_S = 2.0
"""A state that is older than this does not count."""
MAX_DT = 0.25
"""A bridge that was held up does not jump to a higher speed: longer ticks count as this many seconds."""
NOTHING_YET, DEACTIVATED = "no cmd_vel has come yet", "the bridge is deactivated"
SILENT, SILENT_AT_REST = "cmd_vel is silent", "cmd_vel is silent; nothing was to move"
EXPECTED = (NOTHING_YET, DEACTIVATED, SILENT_AT_REST)
"""Reasons for a stop that are no fault."""
REMEMBERED = 256
"""Requests whose answers count; other programs' answers come on the same topic."""

LOW_PERCENT = 20.0
"""A battery with less is named."""

R = TypeVar("R")


def battery_status(percent: float) -> Status:
    """Return the line of `/diagnostics` about the robot's battery."""
    is_low = percent < LOW_PERCENT
    return Status("battery", Level.WARN if is_low else Level.OK, f"{percent:.0f} %{', charge it' if is_low else ''}")


class Bridge(Generic[R]):
    """Sends move requests while velocities arrive and stop requests, until confirmed, when they do not.

    Between `activate` and `deactivate` it makes the robot stand, also again, and drives it while it is `ready`.
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
        guard: Guard | None = None,
    ) -> None:
        for name in ("vx", "vy", "wz"):
            limit, most = getattr(limits, name), getattr(robot.fastest, name)
            if limit > most:
                raise ValueError(f"limit {name} {limit:g} is above {most:g}, the most that {settings.robot} allows")
        self._robot, self._limits, self._settings, self._guard = robot, limits, settings, guard
        self._publish, self._identities, self._log = send, next_identity, log
        self._asked = deque[int](maxlen=REMEMBERED)
        self._watchdog = Watchdog(settings.cmd_vel_timeout)
        self._slew = SlewLimiter(limits)
        self._wanted, self._sent = ZERO, ZERO
        self._interlock = Interlock()
        self._odometry, self._stillness = OdometryCheck(), Stillness()
        self._state: RobotState | None = None
        self._last_tick, self._probed_at = now, -math.inf
        self._active, self._stop_by = False, -math.inf
        self._standing: StandUp[R] | None = None
        self._stopping: Confirmed[R] | None = None
        self._why = ""
        self._confirmed_at = math.inf
        self._giving: list[Confirmed[R]] = []
        self._twists, self._requests, self._states = Arrivals(), Arrivals(), Arrivals()
        self._refused, self._refusal = 0, ""

    @property
    def ready(self) -> bool:
        """Whether the robot stands and obeys velocities."""
        return self._active and not self._interlock.problem and self._standing is not None and self._standing.done

    def activate(self, now: float) -> None:
        """Begin to make the robot stand, unless its state shows that it does, and to drive it then."""
        if not self._active:
            self._active, self._last_tick = True, now
            self._get_up(now)

    def deactivate(self, now: float) -> None:
        """Begin to stop the robot; ticks go on until it is confirmed. A robot that a person has taken is left alone."""
        if not self._active:
            return
        held = not self._interlock.problem or self._interlock.stops(now)
        self._active, self._standing = False, None
        self._stopping, self._stop_by = None, now + END_S
        if held:
            self._keep_stopping(now, DEACTIVATED)
        self._give_control(now)

    def ending(self, now: float) -> bool:
        """Return whether the stop of `deactivate` is still repeated."""
        return not self._active and now < self._stop_by and bool(self.unconfirmed)

    @property
    def unconfirmed(self) -> str:
        """Why the stop of `deactivate` is not confirmed, in a sentence; empty once it is."""
        if self._stopping is not None and not self._stopping.done:
            return self._stillness.moving or "the robot did not answer the stop request"
        if self._stopping is not None and not self._stillness.since(self._confirmed_at):
            return self._stillness.moving or "nothing has shown since the stop that the robot stands"
        return "" if all(each.done for each in self._giving) else "the robot did not take back its motion service"

    def reset(self, now: float) -> str:
        """Clear what latched, by a person's order, or return why not, in a sentence. The robot is made ready again."""
        problem = self._interlock.reset(now)
        if not problem and self._active and not self.ready:
            self._get_up(now)
        return problem

    def tick(self, now: float) -> None:
        """Send what is due. To be called whenever `wait` is over."""
        dt, self._last_tick = min(now - self._last_tick, MAX_DT), now
        if self.ending(now):
            if self._stopping is not None:
                self._keep_stopping(now, self._why)
            self._give_control(now)
        elif self._active and self._interlock.problem:
            if self._interlock.stops(now):
                self._keep_stopping(now, self._interlock.problem)
            self._give_control(now)
        elif self.ready:
            self._drive(now, dt)
        elif self._active and self._standing is not None:
            self._continue_standing_up(self._standing, now)

    def wait(self, now: float) -> float:
        """Return the seconds until the next tick: the next in the rhythm of `RATE_HZ`, or when cmd_vel is silent."""
        silent_in = self._settings.cmd_vel_timeout - self._watchdog.silence(now)
        period = 1.0 / RATE_HZ
        rest = max(self._last_tick + period - now, 0.0)
        return min(rest, silent_in + LATE_S) if silent_in >= 0.0 else rest

    def on_velocity(self, velocity: Velocity, now: float) -> None:
        """Take a commanded velocity. A stop, or one that is not finite, is sent on now, not at the next tick."""
        self._wanted = velocity
        self._watchdog.feed(now)
        self._twists.note(now)
        if self.ready and (not velocity.finite or (velocity == ZERO and self._sent != ZERO)):
            self._drive(now, 0.0)

    def on_odometry(self, sample: OdometrySample) -> None:
        """Take odometry with its twist."""
        speed = math.inf
        # Odometry that is wrong shows no standing robot: the stop is repeated until it is sound again.
        if self._odometry.take(sample) is not None and sample.twist is not None:
            vx, vy, wz = sample.twist
            speed = max(math.hypot(vx, vy), abs(wz))
        self._stillness.note("odometry", speed, sample.arrived)

    def on_state(self, state: RobotState, now: float) -> None:
        """Take the robot's own state. One that lies down is made to stand up again, unless a person damped it."""
        before, self._state = self._state, state
        self._states.note(now)
        self._stillness.note("the robot's state", max(state.speed, abs(state.turn)), now)
        if not self._active:
            return
        if state.posture is Posture.DAMPED and before is not None and before.posture is not Posture.DAMPED:
            if self._interlock.damped():
                self._let_go(state.problem, now)
        elif self.ready and state.posture in (Posture.DOWN, Posture.DAMPED):
            self._let_go(state.problem, now)

    def on_remote(self, used: bool, now: float) -> None:
        """Take a message of the remote control: a person who uses it has the robot."""
        if used and self._active and self._interlock.remote(now):
            self._let_go("the remote control is used", now)

    def on_e_stop(self, pressed: bool, now: float) -> None:
        """Take a message of the e-stop."""
        if self._interlock.e_stop(pressed) and self._active:
            self._let_go("e-stop", now)

    def on_answer(self, answer: Answer, now: float) -> None:
        """Take the robot's answer to a request; answers to other programs' requests are passed over."""
        if answer.identity not in self._asked:
            return
        if answer.problem:
            self._refused, self._refusal = self._refused + 1, answer.problem
            self._log.error(answer.problem, throttle_duration_sec=1.0)
        ready = self.ready
        for request in (*self._giving, self._stopping):
            if request is not None:
                request.answered(answer)
        if self._stopping is not None and self._stopping.asked(answer) and self._stopping.done:
            self._confirmed_at = now
        if self._standing is not None:
            self._standing.answered(answer)
        if ready and answer.unready:
            self._let_go(answer.problem, now)

    def health(self, now: float) -> list[Status]:
        """Return what `/diagnostics` reports."""
        posture, latched = self._posture(now), self._interlock.problem
        down = self._state.problem if self._state and posture is not Posture.UNKNOWN else ""
        problem = "" if self.ready else latched or down or "the robot is made to stand"
        robot = Status(
            "robot",
            Level.ERROR if latched else Level.WARN if problem else Level.OK,
            problem or "stands and obeys cmd_vel",
            {
                "posture": posture.value,
                "states a second": self._states.rate(now),
                "motion service": self._settings.motion_service,
                LATCHES: self._interlock.count,
            },
        )
        silent = self.ready and self._watchdog.expired(now)
        requests = Status(
            "requests",
            Level.WARN if silent else Level.OK,
            "cmd_vel is silent" if silent else "cmd_vel arrives" if self.ready else "nothing is driven",
            {
                "cmd_vel a second": self._twists.rate(now),
                "requests a second": self._requests.rate(now),
                "refused": self._refused,
                "last refusal": self._refusal,
            },
        )
        return [robot, requests, *([self._guard.health(now)] if self._guard is not None else [])]

    def _posture(self, now: float) -> Posture:
        age = self._states.age(now)
        if self._state is None or age is None or age > STATE_OLD_S:
            return Posture.UNKNOWN
        return self._state.posture

    def _get_up(self, begun: float) -> None:
        """Make the robot ready; `begun` is when its state topic began to count, long ago where it had its chance."""
        self._standing = StandUp(self._robot, self._settings.stand_up_s, self._next_identity, begun)
        self._stopping, self._giving = None, []

    def _continue_standing_up(self, standing: StandUp[R], now: float) -> None:
        request = standing.due(self._posture(now), now)
        if request is not None:
            self._send(request)
        if standing.done:
            # What was commanded meanwhile is not obeyed late.
            self._watchdog = Watchdog(self._settings.cmd_vel_timeout)
            self._log.info("the robot stands: taking cmd_vel")
        else:
            self._log.info("standing up; waiting for the robot's answer", throttle_duration_sec=5.0)

    def _drive(self, now: float, dt: float) -> None:
        if self._watchdog.silence(now) == math.inf:
            self._keep_stopping(now, NOTHING_YET)
        elif self._watchdog.expired(now):
            goes_on = self._stopping is not None and self._why == SILENT
            self._keep_stopping(now, SILENT if goes_on or self._sent != ZERO else SILENT_AT_REST)
        elif not self._wanted.finite:
            self._keep_stopping(now, "cmd_vel is not finite")
        else:
            self._stopping = None
            wanted = self._wanted
            if self._guard is not None:
                wanted = self._guard.limit(wanted, now)
                if wanted.vx < self._wanted.vx:
                    self._log.warning(f"guard: {self._guard.health(now).message}", throttle_duration_sec=5.0)
            if wanted == ZERO:
                # Not along the slew: who stops means now.
                self._slew.reset()
            probe = now - self._probed_at >= PROBE_S
            self._probed_at = now if probe else self._probed_at
            self._sent = self._slew.step(wanted, dt)
            self._send(self._robot.move(self._sent, self._limits, self._next_identity(), probe))

    def _let_go(self, why: str, now: float) -> None:
        """Send one stop and drive no more; what holds the bridge back decides how it goes on."""
        self._log.error(f"not ready: {self._interlock.problem or why}")
        self._stopping = None
        self._keep_stopping(now, self._interlock.problem or why)
        if self._interlock.problem:
            self._standing = None
            self._give_control(now)
        else:
            self._get_up(-math.inf)

    def _give_control(self, now: float) -> None:
        """Have the robot confirm that its motion service is its own again."""
        if not self._giving:
            self._giving = [Confirmed(make, self._next_identity, STOP_RETRY_S) for make in self._robot.give_control]
        for each in self._giving:
            self._send_due(each, now)

    def _keep_stopping(self, now: float, why: str) -> None:
        """Repeat the stop request until the robot answered it and, where its speed is known, stands."""
        if self._stopping is None or why != self._why:
            self._stopping = Confirmed(self._robot.stop, self._next_identity, STOP_RETRY_S)
            self._why, self._sent, self._confirmed_at = why, ZERO, math.inf
            self._slew.reset()
            # Two statements: rclpy's logger ends a node whose line logs at two levels.
            if why in EXPECTED:
                self._log.info(f"stop: {why}")
            else:
                self._log.warning(f"stop: {why}")
        if self._stillness.moving:
            self._stopping.reopen()
        if self._odometry.problem:
            self._log.warning(f"the stop is repeated: {self._odometry.problem}", throttle_duration_sec=5.0)
        if self._send_due(self._stopping, now):
            for make in self._robot.stop_too:
                self._send(make(self._next_identity()))

    def _send_due(self, confirmed: Confirmed[R], now: float) -> bool:
        request = confirmed.due(now)
        if request is not None:
            self._send(request)
        return request is not None

    def _next_identity(self) -> int:
        self._asked.append(self._identities())
        return self._asked[-1]

    def _send(self, request: R) -> None:
        self._requests.note(self._last_tick)
        self._publish(request)
