"""A process in place of nav2: DriveOnHeading, Spin and NavigateToPose on the robot's odometry, velocities on cmd_vel.

It does what nav2's own behaviours do that matters to a client: 10 cycles a second, feedback, a time allowance, one goal
of a kind at a time, results with nav2's codes. It knows no costmap: with `-p obstacle:=true` everything is in the way.
`-p haste:=2.0` makes it twice as fast.
It prints a line for each goal that begins or ends.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import rclpy
from geometry_msgs.msg import Twist
from nav2_msgs.action import DriveOnHeading, NavigateToPose, Spin
from nav_msgs.msg import Odometry
from rclpy.action import ActionServer, CancelResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data

from spec_vlm_nav.motion import wrap, yaw_of
from spec_vlm_nav.nodes.conversions import seconds_of

CYCLE_S = 0.1
FORWARD, TURN, NEAR_M, NEAR_RAD = 0.4, 0.6, 0.1, 0.1
KINDS = {"drive_on_heading": DriveOnHeading, "spin": Spin, "navigate_to_pose": NavigateToPose}


class Nav2Servers(Node):
    def __init__(self) -> None:
        super().__init__("nav2")
        self.pose: tuple[float, float, float] | None = None
        self.obstacle = bool(self.declare_parameter("obstacle", False).value)
        self.haste = float(self.declare_parameter("haste", 1.0).value)
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
        if self.pose is None:
            put("odometry")
        at, turn = message.pose.pose.position, message.pose.pose.orientation
        self.pose = at.x, at.y, yaw_of(turn.x, turn.y, turn.z, turn.w)

    def drive(self, vx: float = 0.0, wz: float = 0.0) -> None:
        twist = Twist()
        twist.linear.x, twist.angular.z = float(vx), float(wz)
        self.velocities.publish(twist)

    def execute(self, name: str, handle: Any) -> Any:
        result, goal = KINDS[name].Result, handle.request
        put(f"{name} began")
        code, began = result.NONE, time.monotonic()
        allowance = seconds_of(goal.time_allowance) if name != "navigate_to_pose" else 0.0
        steps = getattr(self, name)(handle)
        for velocity in steps:
            if handle.is_cancel_requested or not handle.is_active:
                break
            if self.obstacle or velocity is None:
                code = getattr(result, "COLLISION_AHEAD" if self.obstacle else "TF_ERROR", 1)
                break
            if allowance and time.monotonic() - began > allowance:
                code = result.TIMEOUT
                break
            self.drive(*(self.haste * speed for speed in velocity))
            time.sleep(CYCLE_S)
        self.drive()
        if handle.is_cancel_requested:
            handle.canceled()
        elif code == result.NONE:
            handle.succeed()
        else:
            handle.abort()
        put(f"{name} {'canceled' if handle.is_cancel_requested else code}")
        return result(error_code=code)

    def drive_on_heading(self, handle: Any) -> Iterator[tuple[float, float] | None]:
        goal, start = handle.request, self.pose
        while start is not None and self.pose is not None:
            gone = math.dist(start[:2], self.pose[:2])
            handle.publish_feedback(DriveOnHeading.Feedback(distance_traveled=gone))
            if gone >= abs(goal.target.x):
                return
            yield goal.speed, 0.0
        yield None

    def spin(self, handle: Any) -> Iterator[tuple[float, float] | None]:
        target, last, turned = handle.request.target_yaw, self.pose, 0.0
        while last is not None and self.pose is not None:
            turned, last = turned + wrap(self.pose[2] - last[2]), self.pose
            handle.publish_feedback(Spin.Feedback(angular_distance_traveled=turned))
            if abs(turned) >= abs(target):
                return
            yield 0.0, math.copysign(TURN, target)
        yield None

    def navigate_to_pose(self, handle: Any) -> Iterator[tuple[float, float] | None]:
        there = handle.request.pose.pose
        heading = yaw_of(0.0, 0.0, there.orientation.z, there.orientation.w)
        while self.pose is not None:
            x, y, yaw = self.pose
            dx, dy = there.position.x - x, there.position.y - y
            feedback = NavigateToPose.Feedback(distance_remaining=math.hypot(dx, dy))
            feedback.current_pose.header.frame_id = "map"
            feedback.current_pose.pose.position.x, feedback.current_pose.pose.position.y = x, y
            feedback.current_pose.pose.orientation.z = math.sin(yaw / 2)
            feedback.current_pose.pose.orientation.w = math.cos(yaw / 2)
            handle.publish_feedback(feedback)
            near = math.hypot(dx, dy) <= NEAR_M
            off = wrap((heading if near else math.atan2(dy, dx)) - yaw)
            if near and abs(off) <= NEAR_RAD:
                return
            yield (0.0 if near or abs(off) > 0.3 else FORWARD), max(-TURN, min(TURN, 2.0 * off))
        yield None


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
