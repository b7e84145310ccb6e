"""The robot's motion services as the Go2 offers them at /api/sport and /api/obstacles_avoid: pure rules on given time.

Only the calls that this project may make exist here; everything else is refused, acrobatics above all. Ids,
parameters and codes follow unitree_ros2 (ros2_sport_client.h), unitree_sdk2 and unitree_sdk2_python; the hold time and
the velocity limits follow Unitree's "Motion Services Interface V2.0".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypeGuard

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


class AvoidId(IntEnum):
    """The calls of obstacles_avoid."""

    SWITCH_SET = 1001
    SWITCH_GET = 1002
    MOVE = 1003
    USE_REMOTE_COMMAND_FROM_API = 1004


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


class ModeState(NamedTuple):
    """The posture in a `unitree_go/SportModeState`."""

    mode: int
    gait_type: int
    error_code: int
    """The number of the state machine, since firmware 1.1.6."""


STANDSTILL = Velocity(0.0, 0.0, 0.0)
LIMITS = (Velocity(-2.5, -1.0, -4.0), Velocity(3.8, 1.0, 4.0))
"""Lowest and highest commanded velocity; a Move beyond is clamped."""

AVOID_LIMITS = (Velocity(-1.5, -1.0, -1.57), Velocity(1.5, 1.0, 1.57))
"""Lowest and highest velocity that obstacles_avoid takes."""

_SHOWN = {
    Posture.LIMP: ModeState(7, 0, 1001),
    Posture.LYING: ModeState(5, 0, 1004),
    Posture.LOCKED: ModeState(6, 0, 1002),
    Posture.BALANCED: ModeState(1, 0, 1013),
}
_WALKING = ModeState(3, 1, 1015)

_ENTERS = {
    SportId.DAMP: Posture.LIMP,
    SportId.BALANCE_STAND: Posture.BALANCED,
    SportId.STAND_UP: Posture.LOCKED,
    SportId.STAND_DOWN: Posture.LYING,
    SportId.RECOVERY_STAND: Posture.BALANCED,
}


class MotionServices:
    """Posture and commanded velocity of one robot, by its sport service and by obstacles_avoid.

    While obstacles_avoid takes its commands from the API, sport's Move and StopMove are answered and have no effect.
    What the robot would see and avoid is not simulated, and its state shows a new posture at once; a real robot takes
    seconds to get there. `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], posture: Posture = Posture.BALANCED) -> None:
        self._clock = clock
        self.posture = posture
        self._velocity, self._moved_at = STANDSTILL, -math.inf
        self._avoids = self._from_api = False

    def request_sport(self, api_id: int, parameter: str = "") -> SportCode:
        """Carry out a request of the sport service and return its code; a refused request changes nothing."""
        if self._from_api and api_id in (SportId.MOVE, SportId.STOP_MOVE):
            return SportCode.OK
        try:
            call = SportId(api_id)
        except ValueError:
            return SportCode.NOT_IMPLEMENTED
        if call is SportId.MOVE:
            velocity = parse_move(parameter)
            return SportCode.PARAMETER if velocity is None else self._walk(velocity)
        if call is SportId.BALANCE_STAND and not self.posture.standing:
            return SportCode.POSTURE
        self.posture = _ENTERS.get(call, self.posture)
        self._velocity = STANDSTILL
        return SportCode.OK

    def request_avoid(self, api_id: int, parameter: str = "") -> tuple[SportCode, str]:
        """Carry out a request of obstacles_avoid; return its code and the data of its answer."""
        if api_id == AvoidId.SWITCH_GET:
            return SportCode.OK, json.dumps({"enable": self._avoids})
        if api_id == AvoidId.MOVE:
            return self._avoiding_move(parameter), ""
        names: dict[int, str] = {
            AvoidId.SWITCH_SET: "enable",
            AvoidId.USE_REMOTE_COMMAND_FROM_API: "is_remote_commands_from_api",
        }
        data, name = _read(parameter), names.get(api_id)
        if name is None:
            return SportCode.NOT_IMPLEMENTED, ""
        if set(data) != {name} or not isinstance(data[name], bool):
            return SportCode.PARAMETER, ""
        if api_id == AvoidId.SWITCH_SET:
            self._avoids = data[name]
        else:
            self._from_api = data[name]
        if not (self._avoids and self._from_api):
            self._from_api = False
            self._velocity = STANDSTILL
        return SportCode.OK, ""

    def velocity(self, now: float | None = None) -> Velocity:
        """Return the velocity that holds at `now` (the clock's present if omitted): zero 1.0 s after the last Move."""
        elapsed = (self._clock() if now is None else now) - self._moved_at
        return self._velocity if elapsed < MOVE_HOLD else STANDSTILL

    def state(self, velocity: Velocity) -> ModeState:
        """Return what the state topic shows of a robot that moves with `velocity`."""
        return _WALKING if self.posture is Posture.BALANCED and any(velocity) else _SHOWN[self.posture]

    def _walk(self, velocity: Velocity) -> SportCode:
        """Keep up a velocity until `MOVE_HOLD` is over."""
        if self.posture is not Posture.BALANCED:
            return SportCode.POSTURE
        self._velocity, self._moved_at = velocity, self._clock()
        return SportCode.OK

    def _avoiding_move(self, parameter: str) -> SportCode:
        data = _read(parameter)
        velocity = _velocity(data, ("x", "y", "yaw"), AVOID_LIMITS)
        if velocity is None or set(data) != {"x", "y", "yaw", "mode"} or data["mode"] != 0:
            return SportCode.PARAMETER
        return self._walk(velocity) if self._from_api else SportCode.OK


def parse_move(parameter: str) -> Velocity | None:
    """Read `{"x": vx, "y": vy, "z": vyaw}`, clamped to LIMITS; None unless it is exactly three finite numbers."""
    data = _read(parameter)
    return _velocity(data, Velocity._fields, LIMITS) if set(data) == set(Velocity._fields) else None


def _read(parameter: str) -> dict[str, Any]:
    """Return a parameter's JSON object; an empty one for anything else."""
    if len(parameter) > MAX_PARAMETER:
        return {}
    try:
        data = json.loads(parameter)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _velocity(data: dict[str, Any], names: Sequence[str], limits: tuple[Velocity, Velocity]) -> Velocity | None:
    values = [data.get(name) for name in names]
    numbers = [float(v) for v in values if _is_number(v)]
    if len(numbers) < len(values):
        return None
    return Velocity(*(min(max(v, low), high) for v, low, high in zip(numbers, *limits, strict=True)))


def _is_number(value: Any) -> TypeGuard[float]:
    # A JSON integer may be too large for a float, and JSON's true is a number to Python.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
