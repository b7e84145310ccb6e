"""Twist in, the robot's requests out: `spec_vlm_nav.bridge` on ROS topics. The parameter `robot` names the robot."""

from __future__ import annotations

import sys
import time
from typing import Any

from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data

from spec_vlm_nav.bridge import Bridge
from spec_vlm_nav.nodes.common import COMMAND_QOS, Heartbeat, message_type, run, sample_of, settings
from spec_vlm_nav.parameters import BRIDGE, LIMITS
from spec_vlm_nav.robots import robot_of
from spec_vlm_nav.safety import Velocity

RATE_HZ = 20.0


class Go2Bridge(Node):
    """Gives a `Bridge` its messages and its time, 20 ticks a second. It has its name from the first robot."""

    def __init__(self) -> None:
        super().__init__("go2_bridge")
        limits, chosen = settings(self, LIMITS), settings(self, BRIDGE)
        self._robot = robot_of(chosen.robot)
        self._identity = time.monotonic_ns()
        self._bridge = Bridge(
            self._robot, limits, chosen, time.monotonic(), self._send, self._next_identity, self.get_logger()
        )
        self._request_type = message_type(self._robot.requests.kind)
        self._requests = self.create_publisher(self._request_type, self._robot.requests.name.lstrip("/"), 10)
        answers = self._robot.answers
        self.create_subscription(message_type(answers.kind), answers.name.lstrip("/"), self._on_response, 10)
        self.create_subscription(Twist, "cmd_vel", self._on_twist, COMMAND_QOS)
        self.create_subscription(Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        self._heartbeat = Heartbeat(self, lambda: self._bridge.ready)
        self.create_timer(1.0 / RATE_HZ, self._tick)

    def stop(self) -> None:
        """Stop the robot for the last time, when the node ends."""
        self._bridge.end()
        self.get_logger().info("stop sent: the bridge ends")
        # The middleware sends in the background; an immediate exit could drop the message.
        time.sleep(0.1)

    def _tick(self) -> None:
        self._bridge.tick(time.monotonic())

    def _on_twist(self, twist: Twist) -> None:
        self._bridge.on_velocity(Velocity(twist.linear.x, twist.linear.y, twist.angular.z), time.monotonic())

    def _on_odometry(self, odometry: Odometry) -> None:
        self._bridge.on_odometry(sample_of(odometry, with_twist=True))

    def _on_response(self, response: Any) -> None:
        self._bridge.on_answer(self._robot.read(response))

    def _next_identity(self) -> int:
        self._identity = max(self._identity + 1, time.monotonic_ns())
        return self._identity

    def _send(self, request: Any) -> None:
        message = self._request_type()
        self._robot.write(request, message)
        self._requests.publish(message)


def main() -> None:
    """Run the node."""
    sys.exit(run(Go2Bridge, Go2Bridge.stop))


if __name__ == "__main__":
    main()
