"""The real nodes, called as ROS would call them, on a clock of the test's own: bad odometry proves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import rclpy
from nav_msgs.msg import Odometry
from unitree_api.msg import Request, Response

from spec_vlm_nav.nodes import common, go2_bridge, senses
from spec_vlm_nav.nodes.go2_bridge import Go2Bridge
from spec_vlm_nav.nodes.senses import Senses
from spec_vlm_nav.odometry import OdometryCheck
from spec_vlm_nav.robots.go2 import SPORT, SportApi

TICK_S = 0.05


@dataclass
class Sent:
    """A publisher that keeps what is published."""

    messages: list[Any] = field(default_factory=list)

    def publish(self, message: Any) -> None:
        self.messages.append(message)


class Clock:
    """Stands for the module `time` in the nodes."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module")
def clock() -> Iterator[Clock]:
    """A clock for all nodes of this file, and ROS."""
    made = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (common, go2_bridge, senses):
            patch.setattr(module, "time", made)
        rclpy.init()
        yield made
        rclpy.shutdown()


def odometry(clock: Clock, x: float = 0.0, yaw: float = 0.0, stamp: float | None = None) -> Odometry:
    """Return a message of this moment."""
    message = Odometry()
    stamp = clock.now if stamp is None else stamp
    message.header.stamp.sec, message.header.stamp.nanosec = int(stamp), int(stamp % 1.0 * 1e9)
    message.pose.pose.position.x = x
    message.pose.pose.orientation.z, message.pose.pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    return message


def test_odometry_that_is_wrong_confirms_no_stop(clock: Clock) -> None:
    bridge = Go2Bridge()
    requests = Sent()
    bridge._senders = dict.fromkeys(bridge._senders, requests)

    def second(vx: float) -> list[int]:
        """Live a second without cmd_vel; the robot answers everything. Return what was requested."""
        before = len(requests.messages)
        for _ in range(20):
            clock.now += TICK_S
            message = odometry(clock)
            message.twist.twist.linear.x = vx
            bridge._on_odometry(message)
            bridge._tick()
            for request in requests.messages[before:]:
                bridge._on_answer(SPORT, answer(request))
        return [request.header.identity.api_id for request in requests.messages[before:]]

    try:
        bridge.activate()
        standing_up = [api for _ in range(10) for api in second(0.0)]
        expected = [SportApi.STAND_UP, SportApi.BALANCE_STAND, SportApi.STOP_MOVE]
        assert standing_up == expected, "a robot whose state shows that it stands gets one StopMove"
        for wrong in (math.nan, 0.2):
            stops = second(wrong)
            assert len(stops) > 5 and set(stops) == {SportApi.STOP_MOVE}
        second(0.0)
        assert second(0.0) == []
    finally:
        bridge.destroy_node()


def answer(request: Request) -> Response:
    response = Response()
    response.header.identity = request.header.identity
    return response


def test_the_distance_of_a_goal_counts_no_bad_odometry(clock: Clock) -> None:
    node: Any = SimpleNamespace(travelled=0.0, _odometry=OdometryCheck(), _place=None)
    places = [0.0, 0.01, 0.02, math.nan, 0.03, 5.0, *[5.0] * 40, 5.01, 5.02]
    for x in places:
        clock.now += 0.02
        Senses._on_odometry(node, odometry(clock, x))
    assert node.travelled == pytest.approx(0.04, abs=1e-6)
