"""A simulated Go2 on the robot's own topics: requests, odometry, state, front camera.

One thread moves the robot and publishes how; another, which owns GL, renders: odometry never waits for a frame.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from array import array
from dataclasses import asdict
from functools import partial
from queue import Empty, SimpleQueue

import msgspec
from geometry_msgs.msg import TransformStamped
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, LaserScan
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage
from unitree_api.msg import Request, Response
from unitree_go.msg import LowState, SportModeState

from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run, start_thread
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.robot import Service
from spec_vlm_nav.robots.go2 import AVOID, BATTERY, SPORT, STATES
from spec_vlm_nav.simulated_go2 import ROBOT, ROOM, SCAN_ANGLES, SimulatedGo2, scene_of

BUILD_LIMIT_S = 60.0
QUIET_S, LINGER_S = 0.3, 2.0
"""At its end it goes on until no request came for so long, at most so long."""
BATTERY_PERIOD_S = 1.0
SCAN_RANGE = (0.05, 12.0)


class SimGo2(Node):
    """Publishes what the robot would. The ground truth topic is for scoring and for people."""

    def __init__(self) -> None:
        super().__init__("sim_go2")
        self._room, robot = msgspec.to_builtins(settings(self, ROOM)), settings(self, ROBOT)
        self._scene = scene_of(**self._room)
        self._size = robot.image_size
        self._camera_period, self._odom_period = 1.0 / robot.camera_hz, 1.0 / robot.odom_hz
        self._scan_period = 1.0 / robot.scan_hz if robot.scan_hz else math.inf
        self._called_at = -math.inf
        self._calls: SimpleQueue[tuple[Service, Request]] = SimpleQueue()
        self._images = self.create_publisher(CompressedImage, "camera/image/compressed", qos_profile_sensor_data)
        self._odometry = self.create_publisher(Odometry, "odom", qos_profile_sensor_data)
        self._transforms = self.create_publisher(TFMessage, "/tf", 100)
        self._states = self.create_publisher(SportModeState, STATES.name.lstrip("/"), qos_profile_sensor_data)
        self._batteries = self.create_publisher(LowState, BATTERY.name.lstrip("/"), qos_profile_sensor_data)
        self._scans = self.create_publisher(LaserScan, "scan", qos_profile_sensor_data) if robot.scan_hz else None
        self._answers = {
            service: self.create_publisher(Response, service.answers.name.lstrip("/"), 10) for service in (SPORT, AVOID)
        }
        self._truth = self.create_publisher(String, "ground_truth", 10)
        self._built, self._end = threading.Event(), threading.Event()
        self._failure: Exception | None = None
        self._thread = start_thread(self, "camera", self._simulate)
        if not self._built.wait(BUILD_LIMIT_S):
            raise ValueError(f"the room was not built within {BUILD_LIMIT_S:g} s; is software OpenGL installed?")
        if self._failure is not None:
            raise ValueError(f"the simulation cannot start: {self._failure}")
        for service in (SPORT, AVOID):
            subscribe(self, Request, service.requests.name.lstrip("/"), partial(self._call, service), 50)
        what = f"{self._scene.target.text} among {len(self._scene.objects) - 1} other objects"
        self.get_logger().info(f"room {self._scene.seed} ({self._scene.difficulty.name.lower()}): {what}")

    def close(self) -> None:
        """End the threads; the camera's frees the GL objects that only it may touch.

        A bridge that ends at the same time has its stop confirmed first.
        """
        until = time.monotonic() + LINGER_S
        while (now := time.monotonic()) < until and now - self._called_at < QUIET_S:
            time.sleep(0.02)
        self._end.set()
        self._thread.join(timeout=5.0)

    def _call(self, service: Service, call: Request) -> None:
        self._called_at = time.monotonic()
        self._calls.put((service, call))

    def _simulate(self) -> None:
        try:
            robot = SimulatedGo2(self._scene, time.monotonic, self._size)
            robot.frame()
        except Exception as error:
            self._failure = error
            self._built.set()
            return
        self._built.set()
        moving = start_thread(self, "motion", partial(self._move, robot))
        try:
            self._render(robot)
        finally:
            self._end.set()
            moving.join()
            robot.close()

    def _render(self, robot: SimulatedGo2) -> None:
        due = time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            # Late frames are skipped, not made up for.
            due = max(due + self._camera_period, time.monotonic())
            self._publish_frame(robot)

    def _move(self, robot: SimulatedGo2) -> None:
        next_odometry = next_scan = next_battery = time.monotonic()
        while not self._end.is_set():
            try:
                call = self._calls.get(timeout=max(0.0, next_odometry - time.monotonic()) + 1e-4)
            except Empty:
                pass
            else:
                self._answer(robot, *call)
                continue
            now = time.monotonic()
            if now < next_odometry:
                continue
            robot.advance()
            self._publish_odometry(robot)
            self._publish_state(robot)
            if self._scans is not None and now >= next_scan:
                next_scan = max(next_scan + self._scan_period, now)
                self._publish_scan(robot)
            if now >= next_battery:
                next_battery = now + BATTERY_PERIOD_S
                self._publish_battery(robot)
            # Late ticks are skipped, not made up for.
            next_odometry = max(next_odometry + self._odom_period, now)

    def _answer(self, robot: SimulatedGo2, service: Service, call: Request) -> None:
        robot.advance()
        api_id, data = call.header.identity.api_id, ""
        if service == SPORT:
            code = robot.request(api_id, call.parameter)
        else:
            code, data = robot.request_avoid(api_id, call.parameter)
        if code:
            why = f"{service.requests.name}: api {api_id} refused with code {code}"
            self.get_logger().warning(why, throttle_duration_sec=1.0)
        if not call.header.policy.noreply:
            response = Response(data=data)
            response.header.identity = call.header.identity
            response.header.status.code = code
            self._answers[service].publish(response)

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
        transform = TransformStamped(header=message.header, child_frame_id=message.child_frame_id)
        transform.transform.translation.x, transform.transform.translation.y = pose.x, pose.y
        transform.transform.rotation = message.pose.pose.orientation
        self._transforms.publish(TFMessage(transforms=[transform]))

    def _publish_state(self, robot: SimulatedGo2) -> None:
        pose, velocity, state = robot.pose, robot.velocity, robot.state()
        message = SportModeState(mode=state.mode, gait_type=state.gait_type, error_code=state.error_code)
        now = self.get_clock().now().nanoseconds
        message.stamp.sec, message.stamp.nanosec = now // 10**9, now % 10**9
        message.position = [pose.x, pose.y, 0.0]
        message.velocity = [velocity.x, velocity.y, 0.0]
        message.yaw_speed = velocity.z
        self._states.publish(message)

    def _publish_battery(self, robot: SimulatedGo2) -> None:
        message = LowState()
        message.bms_state.soc = robot.charge
        self._batteries.publish(message)

    def _publish_scan(self, robot: SimulatedGo2) -> None:
        message = LaserScan(angle_min=SCAN_ANGLES[0], angle_max=SCAN_ANGLES[-1])
        message.header.stamp, message.header.frame_id = self.get_clock().now().to_msg(), "base_link"
        message.angle_increment = SCAN_ANGLES[1] - SCAN_ANGLES[0]
        message.range_min, message.range_max = SCAN_RANGE
        message.ranges = robot.scan()
        if self._scans is not None:
            self._scans.publish(message)

    def _publish_frame(self, robot: SimulatedGo2) -> None:
        message = CompressedImage(format="jpeg")
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = "front_camera_optical_frame"
        message.data = array("B", robot.frame())
        self._images.publish(message)
        self._truth.publish(String(data=json.dumps({**asdict(robot.truth()), "room": self._room})))


def main() -> None:
    """Run the node."""
    sys.exit(run(SimGo2, SimGo2.close))


if __name__ == "__main__":
    main()
