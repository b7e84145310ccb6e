"""The Unitree Go2: which calls of its sport service this project may ever make, and their fields. No ROS.

Ids, JSON keys and rules follow Unitree's SDK (`unitree_sdk2_python`, `unitree_ros2`), firmware 1.1.6 and newer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from spec_vlm_nav.robot import Answer, Topic
from spec_vlm_nav.safety import HARD_CAPS, Limits, Velocity, clamp


class SportApi(IntEnum):
    """The allow-list. Jumps and flips do not exist here, and neither does Damp (1001): it drops a standing robot."""

    BALANCE_STAND = 1002
    STOP_MOVE = 1003
    STAND_UP = 1004
    STAND_DOWN = 1005
    RECOVERY_STAND = 1006
    MOVE = 1008


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


def request(api_id: int, identity: int) -> SportRequest:
    """Return a call without parameters. Raises ValueError for an id off the allow-list and for Move, which has some."""
    try:
        api = SportApi(api_id)
    except ValueError:
        allowed = ", ".join(f"{entry.value} {entry.name}" for entry in SportApi)
        raise ValueError(f"sport api id {api_id} is not on the allow-list: {allowed}") from None
    if api is SportApi.MOVE:
        raise ValueError("Move needs a velocity; use move()")
    return SportRequest(identity, int(api), "{}", noreply=False)


def move(velocity: Velocity, limits: Limits, identity: int) -> SportRequest:
    """Return a Move within `limits`. Raises ValueError for NaN and infinity."""
    safe = clamp(velocity, limits)
    parameter = json.dumps({"x": round(safe.vx, 4), "y": round(safe.vy, 4), "z": round(safe.wz, 4)}, allow_nan=False)
    return SportRequest(identity, int(SportApi.MOVE), parameter, noreply=True)


def describe(code: int) -> str:
    """Return a sentence about a response's status code; empty for success."""
    return "" if code == 0 else f"code {code}: {_PROBLEMS.get(code, 'a code that the vendor does not document')}"


class Go2:
    """The `Robot` behind the sport service."""

    requests = Topic("/api/sport/request", "unitree_api/msg/Request", "request_topic")
    answers = Topic("/api/sport/response", "unitree_api/msg/Response", "response_topic")
    topics: Sequence[Topic] = (requests, answers)
    odom_topic = "/utlidar/robot_odom"
    camera_topic = "/camera/image/compressed"
    fastest = Velocity(*HARD_CAPS)
    stand_up: Sequence[Callable[[int], SportRequest]] = (
        partial(request, SportApi.STAND_UP),
        partial(request, SportApi.BALANCE_STAND),
    )

    def stop(self, identity: int) -> SportRequest:
        """Return StopMove."""
        return request(SportApi.STOP_MOVE, identity)

    def move(self, velocity: Velocity, limits: Limits, identity: int) -> SportRequest:
        """Return Move."""
        return move(velocity, limits, identity)

    def write(self, request: SportRequest, message: Any) -> None:
        """Fill a `unitree_api/Request`."""
        message.parameter = request.parameter
        message.header.identity.id = request.identity
        message.header.identity.api_id = request.api_id
        message.header.policy.noreply = request.noreply

    def read(self, message: Any) -> Answer:
        """Read a `unitree_api/Response`."""
        identity, code = message.header.identity, message.header.status.code
        return Answer(identity.id, f"sport api {identity.api_id}: {describe(code)}" if code else "")
