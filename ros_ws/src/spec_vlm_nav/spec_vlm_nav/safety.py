"""What stands between a decision and the motors: limits, slew, watchdogs. Time is always given, never read."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from speculation.settings import CheckedSettings

HARD_CAPS = (1.0, 0.5, 1.0)
"""No configuration may ask for more: forward m/s, sideways m/s, turn rad/s (the Go2 itself would do 3.8, 1 and 4)."""

MINUTE_S, BUDGET_STEP_S = 60.0, 0.5
"""The time that a motion budget is for, and the steps in which it comes back."""
LAST_STOP_S, LAST_STOPS_S = 0.05, 1.0
"""How often, and how long, a robot is stopped whose bridge fell silent: a Go2 obeys its last request for 1 s."""


@dataclass(frozen=True)
class Velocity:
    """Body velocity: forward and left in m/s, counter-clockwise in rad/s (REP 103)."""

    vx: float = 0.0
    vy: float = 0.0
    wz: float = 0.0

    @property
    def finite(self) -> bool:
        """Whether no component is NaN or infinite."""
        return math.isfinite(self.vx) and math.isfinite(self.vy) and math.isfinite(self.wz)


ZERO = Velocity()


class Limits(CheckedSettings, frozen=True):
    """Largest speeds and their largest rates of change.

    Raises ValueError, naming the limit, for a value that is not finite or outside its range.
    """

    vx: Annotated[float, Meta(ge=0.05, le=HARD_CAPS[0], description="largest speed ahead and back, m/s")] = 0.5
    vy: Annotated[float, Meta(ge=0.05, le=HARD_CAPS[1], description="largest speed sideways, m/s")] = 0.3
    wz: Annotated[float, Meta(ge=0.05, le=HARD_CAPS[2], description="largest turn rate, rad/s")] = 0.6
    acceleration: Annotated[float, Meta(ge=0.1, le=5.0, description="largest speeding up, m/s^2")] = 1.5
    deceleration: Annotated[float, Meta(ge=0.5, le=10.0, description="largest braking, m/s^2")] = 4.0
    turn_acceleration: Annotated[float, Meta(ge=0.1, le=10.0, description="largest turn speeding up, rad/s^2")] = 3.0
    turn_deceleration: Annotated[float, Meta(ge=0.5, le=20.0, description="largest turn braking, rad/s^2")] = 6.0


def clamp(velocity: Velocity, limits: Limits) -> Velocity:
    """Return `velocity` within `limits`. Raises ValueError for NaN and infinity: no motion can be made of them."""
    if not velocity.finite:
        raise ValueError(f"velocity ({velocity.vx}, {velocity.vy}, {velocity.wz}) is not finite; the robot must stop")
    return Velocity(_within(velocity.vx, limits.vx), _within(velocity.vy, limits.vy), _within(velocity.wz, limits.wz))


class SlewLimiter:
    """Lets a velocity change only as fast as the limits allow; braking may be harder than speeding up."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.velocity = ZERO

    def step(self, wanted: Velocity, dt: float) -> Velocity:
        """Move the output towards `wanted`, which is clamped, over `dt` seconds, and return it."""
        goal, now, limits = clamp(wanted, self._limits), self.velocity, self._limits
        dt = max(dt, 0.0)
        self.velocity = Velocity(
            _approach(now.vx, goal.vx, limits.acceleration * dt, limits.deceleration * dt),
            _approach(now.vy, goal.vy, limits.acceleration * dt, limits.deceleration * dt),
            _approach(now.wz, goal.wz, limits.turn_acceleration * dt, limits.turn_deceleration * dt),
        )
        return self.velocity

    def reset(self) -> None:
        """Begin again from standing, after the robot was stopped by other means."""
        self.velocity = ZERO


class MotionBudget:
    """Adds up how far a robot is moved in each minute, so that answers move it no further, whatever they say.

    What is a minute old, or up to `BUDGET_STEP_S` more, is free again. Time: steady clock, seconds.
    """

    def __init__(self, metres: float, radians: float) -> None:
        self._metres, self._radians = metres, radians
        self._steps: deque[tuple[float, float, float]] = deque()
        """When each step began, and the metres and radians in it."""

    def spend(self, metres: float, radians: float, now: float) -> None:
        """Note what the robot was moved until `now`, in any direction."""
        if metres <= 0.0 and radians <= 0.0:
            return
        began = now
        if self._steps and now - self._steps[-1][0] < BUDGET_STEP_S:
            began, before_m, before_rad = self._steps.pop()
            metres, radians = before_m + metres, before_rad + radians
        self._steps.append((began, metres, radians))

    def fits(self, metres: float, radians: float, now: float) -> bool:
        """Return whether so much more may be commanded from `now` on."""
        while self._steps and now - self._steps[0][0] >= MINUTE_S + BUDGET_STEP_S:
            self._steps.popleft()
        spent_m, spent_rad = (math.fsum(step[index] for step in self._steps) for index in (1, 2))
        return spent_m + metres <= self._metres and spent_rad + radians <= self._radians


class Watchdog:
    """Whether something has been silent for longer than `timeout` seconds; silent until its first message.

    Raises ValueError for a timeout that is not a positive number.
    """

    def __init__(self, timeout: float) -> None:
        if not (math.isfinite(timeout) and timeout > 0.0):
            raise ValueError(f"watchdog timeout {timeout} s must be a positive number of seconds")
        self.timeout = timeout
        self._last: float | None = None

    def feed(self, now: float) -> None:
        """Note a message at `now` (steady clock, seconds)."""
        self._last = now

    def silence(self, now: float) -> float:
        """Seconds since the last message; infinite before the first."""
        return math.inf if self._last is None else now - self._last

    def expired(self, now: float) -> bool:
        """Return whether it has been silent for too long."""
        return self.silence(now) > self.timeout


class Watchdogs:
    """One watchdog a name, all with the same timeout at first; `silent` names those that stopped."""

    def __init__(self, names: Iterable[str], timeout: float) -> None:
        self._dogs = {name: Watchdog(timeout) for name in names}

    def feed(self, name: str, now: float) -> None:
        """Note a message of `name`; an unknown name is a KeyError."""
        self._dogs[name].feed(now)

    def allow(self, name: str, timeout: float) -> None:
        """Let `name` be silent for `timeout` seconds; an unknown name is a KeyError."""
        self._dogs[name].timeout = timeout

    def silent(self, now: float) -> tuple[str, ...]:
        """Return the names that have been silent for too long, in the order given."""
        return tuple(name for name, dog in self._dogs.items() if dog.expired(now))

    def next_in(self, now: float) -> float:
        """Return the seconds until the next of them has been silent for its whole timeout; infinite if all are."""
        left = (dog.timeout - dog.silence(now) for dog in self._dogs.values())
        return min((seconds for seconds in left if seconds >= 0.0), default=math.inf)


class LastStop:
    """When a robot is to be stopped by somebody else than its bridge, which fell silent. Time: steady clock, s.

    The stop is repeated every `LAST_STOP_S` for `LAST_STOPS_S`, as long as a robot may obey the bridge's last request.
    There is none where the bridge said last that it does not drive, nor once a person has used the remote control.
    """

    def __init__(self, timeout: float) -> None:
        self._bridge, self._remote = Watchdog(timeout), Watchdog(timeout + LAST_STOPS_S)
        self._drives = False
        self._timeout = timeout
        self._sent_at: float | None = None

    def on_bridge(self, drives: bool, now: float) -> None:
        """Take the bridge's word whether it drives the robot."""
        self._drives = drives
        self._bridge.feed(now)

    def on_remote(self, now: float) -> None:
        """Take notice of sticks or keys in use."""
        self._remote.feed(now)

    def due(self, now: float) -> bool:
        """Return whether a stop is to be sent now, which then counts as sent."""
        silence = self._bridge.silence(now)
        if not self._drives or not self._timeout < silence <= self._timeout + LAST_STOPS_S:
            return False
        if not self._remote.expired(now) or (self._sent_at is not None and now - self._sent_at < LAST_STOP_S):
            return False
        self._sent_at = now
        return True

    def wait(self, now: float) -> float:
        """Return the seconds until `due` may hold next, 0.05 at most."""
        left = self._timeout - self._bridge.silence(now)
        return min(left + 0.0005, LAST_STOP_S) if left > 0.0 else LAST_STOP_S


def _within(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)


def _approach(now: float, goal: float, faster: float, slower: float) -> float:
    """Step from `now` to `goal`: brake to zero by at most `slower`, and only from there speed up by `faster`."""
    if now * goal < 0.0 or abs(goal) < abs(now):
        floor = goal if now * goal > 0.0 else 0.0
        return floor if abs(now - floor) <= slower else now - math.copysign(slower, now)
    return goal if abs(goal - now) <= faster else now + math.copysign(faster, goal - now)
