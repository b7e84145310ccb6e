"""A simulated Go2 on the robot's own topics: sport requests, odometry, front camera. One thread owns world and GL."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from array import array
from dataclasses import asdict
from queue import Empty, SimpleQueue

import msgspec
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String
from unitree_api.msg import Request, Response

from spec_vlm_nav.nodes.common import run, settings
from spec_vlm_nav.robots.go2 import Go2
from spec_vlm_nav.simulated_go2 import ROBOT, ROOM, SimulatedGo2, scene_of

BUILD_LIMIT_S = 60.0


class SimGo2(Node):
    """Publishes what the robot would. The ground truth topic is for scoring and for people."""

    def __init__(self) -> None:
        super().__init__("sim_go2")
        self._room, robot = msgspec.to_builtins(settings(self, ROOM)), settings(self, ROBOT)
        self._scene = scene_of(**self._room)
        self._physics, self._size = robot.physics, robot.image_size
        self._camera_period, self._odom_period = 1.0 / robot.camera_hz, 1.0 / robot.odom_hz
        self._calls: SimpleQueue[Request] = SimpleQueue()
        self._images = self.create_publisher(CompressedImage, "camera/image/compressed", qos_profile_sensor_data)
        self._odometry = self.create_publisher(Odometry, "odom", qos_profile_sensor_data)
        self._responses = self.create_publisher(Response, Go2.answers.name.lstrip("/"), 10)
        self._truth = self.create_publisher(String, "ground_truth", 10)
        self._built, self._end = threading.Event(), threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._simulate, name="simulation", daemon=True)
        self._thread.start()
        if not self._built.wait(BUILD_LIMIT_S):
            raise ValueError(f"the room was not built within {BUILD_LIMIT_S:g} s; is software OpenGL installed?")
        if self._failure is not None:
            raise ValueError(f"the simulation cannot start: {self._failure}")
        self.create_subscription(Request, Go2.requests.name.lstrip("/"), self._calls.put, 50)
        what = f"{self._scene.target.text} among {len(self._scene.objects) - 1} other objects"
        self.get_logger().info(f"room {self._scene.seed} ({self._scene.difficulty.name.lower()}): {what}")

    def close(self) -> None:
        """End the simulation thread, which frees the GL objects that only it may touch."""
        self._end.set()
        self._thread.join(timeout=5.0)

    def _simulate(self) -> None:
        try:
            robot = SimulatedGo2(self._scene, time.monotonic, self._size, self._physics)
            robot.frame()
        except Exception as error:
            self._failure = error
            self._built.set()
            return
        self._built.set()
        try:
            self._loop(robot)
        finally:
            robot.close()

    def _loop(self, robot: SimulatedGo2) -> None:
        next_odometry = next_frame = time.monotonic()
        while not self._end.is_set():
            try:
                call = self._calls.get(timeout=max(0.0, next_odometry - time.monotonic()) + 1e-4)
            except Empty:
                pass
            else:
                self._answer(robot, call)
                continue
            now = time.monotonic()
            if now < next_odometry:
                continue
            robot.advance()
            self._publish_odometry(robot)
            # Late ticks are skipped, not made up for.
            next_odometry = max(next_odometry + self._odom_period, now)
            if now >= next_frame:
                next_frame = max(next_frame + self._camera_period, now)
                self._publish_frame(robot)

    def _answer(self, robot: SimulatedGo2, call: Request) -> None:
        robot.advance()
        code = robot.request(call.header.identity.api_id, call.parameter)
        if code:
            self.get_logger().warning(
                f"sport api {call.header.identity.api_id} refused with code {code}", throttle_duration_sec=1.0
            )
        if not call.header.policy.noreply:
            response = Response()
            response.header.identity = call.header.identity
            response.header.status.code = code
            self._responses.publish(response)

    def _publish_odometry(self, robot: SimulatedGo2) -> None:
        pose, velocity, message = robot.pose, robot.velocity, Odometry()
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id, message.child_frame_id = "odom", "base_link"
        message.pose.pose.position.x, message.pose.pose.position.y = pose.x, pose.y
        message.pose.pose.orientation.z = math.sin(pose.yaw / 2)
        message.pose.pose.orientation.w = math.cos(pose.yaw / 2)
        twist = message.twist.twist
        twist.linear.x, twist.linear.y, twist.angular.z = velocity.x, velocity.y, velocity.z
        self._odometry.publish(message)

    def _publish_frame(self, robot: SimulatedGo2) -> None:
        message = CompressedImage(format="jpeg")
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = "front_camera_optical"
        message.data = array("B", robot.frame())
        self._images.publish(message)
        self._truth.publish(String(data=json.dumps({**asdict(robot.truth()), "room": self._room})))


def main() -> None:
    """Run the node."""
    sys.exit(run(SimGo2, SimGo2.close))


if __name__ == "__main__":
    main()
