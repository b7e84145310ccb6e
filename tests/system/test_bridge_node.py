"""go2_bridge, called as ROS would call it, on a clock of the test's own: bad odometry proves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool
from unitree_api.msg import Response

from spec_vlm_nav.nodes import conversions, go2_bridge
from spec_vlm_nav.nodes.go2_bridge import Go2Bridge
from spec_vlm_nav.robots.go2 import SPORT, SportApi
from tests.system.conftest import until

TICK_S = 0.05


class Sent:
    """A publisher that keeps what is published."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.publish = self.messages.append


class Clock:
    """Stands for the module `time` in the node."""

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
    """A clock for all nodes of this file, in ROS."""
    made = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (conversions, go2_bridge):
            patch.setattr(module, "time", made)
        rclpy.init()
        yield made
        rclpy.shutdown()


def test_odometry_that_is_wrong_confirms_no_stop(clock: Clock) -> None:
    bridge = Go2Bridge()
    requests = Sent()
    bridge._senders = dict.fromkeys(bridge._senders, requests)

    def second(vx: float) -> list[int]:
        """Live a second without cmd_vel; the robot answers everything. Return what was requested."""
        before = len(requests.messages)
        for _ in range(20):
            clock.now += TICK_S
            message = Odometry()
            message.header.stamp.sec, message.header.stamp.nanosec = int(clock.now), int(clock.now % 1.0 * 1e9)
            message.pose.pose.orientation.w, message.twist.twist.linear.x = 1.0, vx
            bridge._on_odometry(message)
            bridge._tick()
            for request in requests.messages[before:]:
                response = Response()
                response.header.identity = request.header.identity
                bridge._on_answer(SPORT, response)
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


@pytest.mark.parametrize("durability", [DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE])
def test_a_bridge_that_is_started_again_gets_the_e_stop_of_a_latched_topic(
    clock: Clock, durability: DurabilityPolicy
) -> None:
    button, latched = Node("button"), durability is DurabilityPolicy.TRANSIENT_LOCAL
    incompatible: list[Any] = []
    events = PublisherEventCallbacks(incompatible_qos=incompatible.append, use_default_callbacks=False)
    qos = QoSProfile(depth=1, durability=durability)
    publisher = button.create_publisher(Bool, "e_stop", qos, event_callbacks=events)
    publisher.publish(Bool(data=True))
    bridge = Go2Bridge()
    bridge._senders = dict.fromkeys(bridge._senders, Sent())

    def problem() -> str:
        for node in (bridge, button):
            rclpy.spin_once(node, timeout_sec=0.02)
        bridge._reader.take(0.02)
        if not latched and publisher.get_subscription_count():
            publisher.publish(Bool(data=True))
        return bridge._bridge._interlock.problem

    try:
        until(lambda: "e-stop" in problem(), "the e-stop")
        bridge.activate()
        assert "e-stop" in problem() and not bridge._bridge.ready
        for _ in range(20):
            problem()
        assert not incompatible, "a publisher of the default QoS is not warned"
    finally:
        bridge.destroy_node()
        button.destroy_node()
