"""The Unitree Go2: which calls of its services this project may ever make, their fields, and what its state means.

Ids, JSON keys and rules follow Unitree's SDK (`unitree_sdk2`, `unitree_sdk2_python`, `unitree_ros2`), firmware 1.1.6
and newer. No ROS.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from spec_vlm_nav.robot import Answer, Posture, RobotState, Service, Topic
from spec_vlm_nav.safety import HARD_CAPS, ZERO, Limits, Velocity, clamp


class SportApi(IntEnum):
    """The sport service's allow-list. Jumps and flips do not exist here, nor does Damp (1001): it drops the robot."""

    BALANCE_STAND = 1002
    STOP_MOVE = 1003
    STAND_UP = 1004
    STAND_DOWN = 1005
    RECOVERY_STAND = 1006
    MOVE = 1008


class AvoidApi(IntEnum):
    """The allow-list of `obstacles_avoid`, whose numbers mean other things than those of the sport service."""

    SWITCH_SET = 1001
    SWITCH_GET = 1002
    MOVE = 1003
    USE_REMOTE_COMMAND_FROM_API = 1004


SPORT = Service(
    Topic("/api/sport/request", "unitree_api/msg/Request", "request_topic"),
    Topic("/api/sport/response", "unitree_api/msg/Response", "response_topic"),
)
AVOID = Service(
    Topic("/api/obstacles_avoid/request", "unitree_api/msg/Request", "avoid_request_topic"),
    Topic("/api/obstacles_avoid/response", "unitree_api/msg/Response", "avoid_response_topic"),
)
STATES = Topic("/sportmodestate", "unitree_go/msg/SportModeState", "state_topic")
REMOTE = Topic("/wirelesscontroller", "unitree_go/msg/WirelessController", "remote_topic")
BATTERY = Topic("/lf/lowstate", "unitree_go/msg/LowState", "battery_topic")
CLOUD = Topic("/utlidar/cloud", "sensor_msgs/msg/PointCloud2", "guard_topic")
ALLOWED: dict[Service, type[IntEnum]] = {SPORT: SportApi, AVOID: AvoidApi}

_UNREADY = (4202, 4205, 4206)
_DEAD_ZONE = 0.1
"""Sticks that nobody touches show less than this; they go from -1 to 1."""

_LOCKED, _LIES, _SITS = "its joints are locked", "it lies or crouches", "it sits"
_DAMPED = "it is damped: its joints are limp"
_FSM: dict[int, tuple[Posture, str]] = {
    **dict.fromkeys((100, 1013, 1015, 1016, 1017, 2007, 2010), (Posture.STANDS, "")),
    1001: (Posture.DAMPED, _DAMPED),
    1002: (Posture.DOWN, _LOCKED),
    1004: (Posture.DOWN, _LIES),
    2006: (Posture.DOWN, _LIES),
    1007: (Posture.DOWN, _SITS),
}
"""What `SportModeState.error_code` means since firmware 1.1.6: agile, balance stand, the walks, avoidance..."""
_MODES: dict[int, tuple[Posture, str]] = {
    1: (Posture.STANDS, ""),
    3: (Posture.STANDS, ""),
    5: (Posture.DOWN, _LIES),
    6: (Posture.DOWN, _LOCKED),
    7: (Posture.DAMPED, _DAMPED),
    10: (Posture.DOWN, _SITS),
}
"""What `SportModeState.mode` means, where `error_code` is no number of `_FSM`; 0 is idle, whatever the posture."""

_PROBLEMS = {
    3001: "unknown error",
    3102: "the request could not be sent",
    3103: "the api id is not registered",
    3104: "the robot did not answer in time",
    3105: "the api id does not match",
    3106: "the data is malformed",
    3107: "the lease is invalid: another controller holds the robot",
    3201: "the response could not be sent",
    3202: "internal error of the robot's service",
    3203: "the api is not implemented",
    3204: "the parameter is malformed",
    3205: "the lease was denied: another controller holds the robot",
    4101: "the path is malformed",
    4201: "the motion took too long",
    4202: "the motion service is not initialised",
    4205: "the motion service is not initialised",
    4206: "the posture does not allow it: the robot must stand first",
}


@dataclass(frozen=True)
class SportRequest:
    """Fields of `unitree_api/Request`. `identity` must be unique; responses carry it back."""

    identity: int
    api_id: int
    parameter: str
    noreply: bool
    service: Service = SPORT


def request(api_id: int, identity: int) -> SportRequest:
    """Return a call without parameters. Raises ValueError for an id off the allow-list and for Move, which has some."""
    _check(SPORT, api_id)
    if api_id == SportApi.MOVE:
        raise ValueError("Move needs a velocity; use move()")
    return SportRequest(identity, int(api_id), "{}", noreply=False)


def move(velocity: Velocity, limits: Limits, identity: int, answered: bool = False) -> SportRequest:
    """Return a Move within `limits`. Raises ValueError for NaN and infinity."""
    x, y, z = _rounded(velocity, limits)
    return SportRequest(identity, int(SportApi.MOVE), _json(x=x, y=y, z=z), not answered)


def avoiding_move(velocity: Velocity, limits: Limits, identity: int, answered: bool = False) -> SportRequest:
    """Return a Move of `obstacles_avoid`, as a velocity (mode 0). Raises ValueError for NaN and infinity."""
    x, y, yaw = _rounded(velocity, limits)
    parameter = _json(x=x, y=y, yaw=yaw, mode=0)
    return SportRequest(identity, int(AvoidApi.MOVE), parameter, not answered, AVOID)


def describe(code: int) -> str:
    """Return a sentence about a response's status code; empty for success."""
    return "" if code == 0 else f"code {code}: {_PROBLEMS.get(code, 'a code that the vendor does not document')}"


def _avoid(api: AvoidApi, identity: int, **parameter: bool) -> SportRequest:
    return SportRequest(identity, int(api), _json(**parameter), False, AVOID)


def _avoiding_halt(identity: int) -> SportRequest:
    return avoiding_move(ZERO, Limits(), identity)


def _rounded(velocity: Velocity, limits: Limits) -> tuple[float, float, float]:
    safe = clamp(velocity, limits)
    return round(safe.vx, 4), round(safe.vy, 4), round(safe.wz, 4)


def _json(**parameter: float | bool) -> str:
    return json.dumps(parameter, allow_nan=False)


def _check(service: Service, api_id: int) -> None:
    apis = ALLOWED[service]
    if api_id not in tuple(apis):
        allowed = ", ".join(f"{entry.value} {entry.name}" for entry in apis)
        name = "sport" if service == SPORT else "obstacles_avoid"
        raise ValueError(f"{name} api id {api_id} is not on the allow-list: {allowed}")


class Go2:
    """The `Robot`. `motion_service` sport walks as it is commanded; obstacles_avoid also keeps off what it sees."""

    requests, answers = SPORT
    services: Sequence[Service] = (SPORT, AVOID)
    states: Topic | None = STATES
    remote: Topic | None = REMOTE
    battery: Topic | None = BATTERY
    obstacles: Topic | None = CLOUD
    topics: Sequence[Topic] = (*SPORT, *AVOID, STATES, REMOTE, BATTERY, CLOUD)
    odom_topic = "/utlidar/robot_odom"
    camera_topic = "/camera/image/compressed"
    fastest = Velocity(*HARD_CAPS)
    motion_services: Sequence[str] = ("sport", "obstacles_avoid")
    stand_up: Sequence[Callable[[int], SportRequest]] = (
        partial(request, SportApi.STAND_UP),
        partial(request, SportApi.BALANCE_STAND),
    )
    take_control: Sequence[Callable[[int], SportRequest]] = ()
    give_control: Sequence[Callable[[int], SportRequest]] = ()
    stop_too: Sequence[Callable[[int], SportRequest]] = ()

    def __init__(self, motion_service: str = "sport") -> None:
        if motion_service not in self.motion_services:
            known = ", ".join(self.motion_services)
            raise ValueError(f"motion_service {motion_service!r} is none of {known}")
        self._avoids = motion_service == "obstacles_avoid"
        if self._avoids:
            self.take_control = (
                partial(_avoid, AvoidApi.SWITCH_SET, enable=True),
                partial(_avoid, AvoidApi.SWITCH_GET),
                partial(_avoid, AvoidApi.USE_REMOTE_COMMAND_FROM_API, is_remote_commands_from_api=True),
            )
            # Until the source of commands is given back the remote control has no effect, nor has sport's StopMove.
            self.give_control = (
                partial(_avoid, AvoidApi.USE_REMOTE_COMMAND_FROM_API, is_remote_commands_from_api=False),
            )
            self.stop_too = (_avoiding_halt,)

    def driven_by(self, motion_service: str) -> Go2:
        """Return the robot with one of its motion services. Raises ValueError for another."""
        return Go2(motion_service)

    def stop(self, identity: int) -> SportRequest:
        """Return StopMove."""
        return request(SportApi.STOP_MOVE, identity)

    def move(self, velocity: Velocity, limits: Limits, identity: int, answered: bool = False) -> SportRequest:
        """Return Move of the motion service."""
        return (avoiding_move if self._avoids else move)(velocity, limits, identity, answered)

    def service_of(self, request: SportRequest) -> Service:
        """Return the service that a request is for."""
        return request.service

    def write(self, request: SportRequest, message: Any) -> None:
        """Fill a `unitree_api/Request`. Raises ValueError for an id off the service's allow-list."""
        _check(request.service, request.api_id)
        message.parameter = request.parameter
        message.header.identity.id = request.identity
        message.header.identity.api_id = request.api_id
        message.header.policy.noreply = request.noreply

    def read(self, service: Service, message: Any) -> Answer:
        """Read a `unitree_api/Response`; SwitchGet succeeds when avoidance is on."""
        identity, code = message.header.identity, message.header.status.code
        avoids = service == AVOID
        problem = f"{'obstacles_avoid' if avoids else 'sport'} api {identity.api_id}: {describe(code)}" if code else ""
        if avoids and not code and identity.api_id == AvoidApi.SWITCH_GET and not _is_enabled(message.data):
            problem = "obstacles_avoid is not on yet"
        return Answer(identity.id, problem, not avoids and code in _UNREADY)

    def read_state(self, message: Any) -> RobotState:
        """Read a `unitree_go/SportModeState`."""
        known = _FSM.get(message.error_code) or _MODES.get(message.mode) or (Posture.UNKNOWN, "")
        speed, turn = math.hypot(message.velocity[0], message.velocity[1]), float(message.yaw_speed)
        return RobotState(known[0], speed, turn, known[1] and f"the robot obeys no velocity: {known[1]}")

    def read_remote(self, message: Any) -> bool:
        """Read a `unitree_go/WirelessController`."""
        sticks = (message.lx, message.ly, message.rx, message.ry)
        return bool(message.keys) or any(not abs(stick) <= _DEAD_ZONE for stick in sticks)

    def read_battery(self, message: Any) -> float:
        """Read a `unitree_go/LowState`."""
        return float(message.bms_state.soc)


def _is_enabled(data: str) -> bool:
    try:
        return bool(json.loads(data)["enable"])
    except (ValueError, KeyError, TypeError):
        return False
