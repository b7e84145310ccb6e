"""The robot's sport service as the Go2 offers it at /api/sport/request: pure rules, the clock is given.

Only the calls that this project may make exist here; everything else is refused, acrobatics above all. Ids,
parameters and codes follow unitree_ros2 (ros2_sport_client.h) and unitree_sdk2_python; the hold time and the velocity
limits follow Unitree's "Motion Services Interface V2.0".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import NamedTuple

MOVE_HOLD = 1.0
"""Seconds for which the last Move is kept up; then the robot stands."""
MAX_PARAMETER = 1000
"""Characters of a request parameter."""


class SportId(IntEnum):
    """The calls of the service."""

    DAMP = 1001
    BALANCE_STAND = 1002
    STOP_MOVE = 1003
    STAND_UP = 1004
    STAND_DOWN = 1005
    RECOVERY_STAND = 1006
    MOVE = 1008


class SportCode(IntEnum):
    """`ResponseStatus.code`."""

    OK = 0
    NOT_IMPLEMENTED = 3203
    PARAMETER = 3204
    POSTURE = 4206


class Posture(Enum):
    """How the robot holds itself. Only a balanced one walks; a locked one stands with stiff joints."""

    LIMP = "limp"
    LYING = "lying"
    LOCKED = "standing, joints locked"
    BALANCED = "standing, balanced"

    @property
    def standing(self) -> bool:
        """Whether the body is at its walking height."""
        return self in (Posture.LOCKED, Posture.BALANCED)


class Velocity(NamedTuple):
    """Body frame: m/s forward, m/s left, rad/s counter-clockwise."""

    x: float
    y: float
    z: float


STANDSTILL = Velocity(0.0, 0.0, 0.0)
LIMITS = (Velocity(-2.5, -1.0, -4.0), Velocity(3.8, 1.0, 4.0))
"""Lowest and highest commanded velocity; a Move beyond is clamped."""

_ENTERS = {
    SportId.DAMP: Posture.LIMP,
    SportId.BALANCE_STAND: Posture.BALANCED,
    SportId.STAND_UP: Posture.LOCKED,
    SportId.STAND_DOWN: Posture.LYING,
    SportId.RECOVERY_STAND: Posture.BALANCED,
}


class SportService:
    """Keeps posture and commanded velocity. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], posture: Posture = Posture.BALANCED) -> None:
        self._clock = clock
        self.posture = posture
        self._velocity, self._moved_at = STANDSTILL, -math.inf

    def request(self, api_id: int, parameter: str = "") -> SportCode:
        """Carry out one request and return its code; a refused request changes nothing."""
        try:
            call = SportId(api_id)
        except ValueError:
            return SportCode.NOT_IMPLEMENTED
        if call is SportId.MOVE:
            return self._move(parameter)
        if call is SportId.BALANCE_STAND and not self.posture.standing:
            return SportCode.POSTURE
        self.posture = _ENTERS.get(call, self.posture)
        self._velocity = STANDSTILL
        return SportCode.OK

    def velocity(self, now: float | None = None) -> Velocity:
        """Return the velocity that holds at `now` (the clock's present if omitted): zero 1.0 s after the last Move."""
        elapsed = (self._clock() if now is None else now) - self._moved_at
        return self._velocity if elapsed < MOVE_HOLD else STANDSTILL

    def _move(self, parameter: str) -> SportCode:
        velocity = parse_move(parameter)
        if velocity is None:
            return SportCode.PARAMETER
        if self.posture is not Posture.BALANCED:
            return SportCode.POSTURE
        self._velocity, self._moved_at = velocity, self._clock()
        return SportCode.OK


def parse_move(parameter: str) -> Velocity | None:
    """Read `{"x": vx, "y": vy, "z": vyaw}`, clamped to LIMITS; None unless it is exactly three finite numbers."""
    if len(parameter) > MAX_PARAMETER:
        return None
    try:
        data = json.loads(parameter)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or set(data) != set(Velocity._fields):
        return None
    values = [data[name] for name in Velocity._fields]
    # a JSON integer may be too large for a float, and JSON's true is a number to Python
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not abs(v) < 1e9 for v in values):
        return None
    return Velocity(*(min(max(float(v), low), high) for v, low, high in zip(values, *LIMITS, strict=True)))
