"""nav_view as a process of its own: what a person sees of a goal on the camera's image, and the robot's transform."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import DecodingStats, NavigationAction
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage

from spec_vlm_nav.annotate import AMBER, BAR, GREEN, RED
from spec_vlm_nav.nodes.nav_view import FEEDBACK, LATCHED
from tests.system.conftest import LIMIT_S, until

FRAME = bytes(cv2.imencode(".jpg", np.full((224, 224, 3), 90, np.uint8))[1])
SENT = {
    "camera/image/compressed": (CompressedImage, qos_profile_sensor_data),
    "odom": (Odometry, qos_profile_sensor_data),
    "vlm_nav/decision": (NavigationAction, 10),
    "decoding_stats": (DecodingStats, 10),
    "navigation_state": (String, 10),
    "instruction": (String, LATCHED),
    FEEDBACK: (NavigateByInstruction.Impl.FeedbackMessage, 10),
}


class Robot(Node):
    """Publishes camera and odometry as the real nodes would, and keeps what comes back."""

    def __init__(self) -> None:
        super().__init__("robot")
        self.last: dict[str, Any] = {}
        self._out = {topic: self.create_publisher(kind, topic, qos) for topic, (kind, qos) in SENT.items()}
        for topic, kind in (("annotated/compressed", CompressedImage), ("/tf", TFMessage)):
            self.create_subscription(kind, topic, lambda message, at=topic: self.last.update({at: message}), 100)
        self.create_timer(0.02, self._tick)

    def until_shown(self, colours: list[tuple[slice, tuple[int, int, int]]], sent: dict[str, Any]) -> None:
        """Send messages until columns of the bar have colours; the first ones come before their reader is there."""

        def is_shown() -> bool:
            for topic, message in sent.items():
                self._out[topic].publish(message)
            return "annotated/compressed" in self.last and all(
                (np.abs(self.bar()[:, part] - colour).max(axis=2) < 25).mean() > 0.05 for part, colour in colours
            )

        until(is_shown, f"{colours}")

    def bar(self) -> Any:
        """Return the pixels of the bar above the frame, RGB."""
        pixels = cv2.imdecode(np.frombuffer(bytes(self.last["annotated/compressed"].data), np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        return pixels[:BAR, :, ::-1].astype(int)

    def _tick(self) -> None:
        stamp = self.get_clock().now().to_msg()
        image, odometry = CompressedImage(format="jpeg", data=array("B", FRAME)), Odometry()
        image.header.stamp, image.header.frame_id = stamp, "front_camera_optical_frame"
        odometry.header.stamp, odometry.header.frame_id = stamp, "dog1/odom"
        odometry.pose.pose.position.x, odometry.pose.pose.orientation.w = 1.0, 1.0
        self._out["camera/image/compressed"].publish(image)
        self._out["odom"].publish(odometry)


@pytest.fixture
def robot() -> Iterator[Robot]:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "spec_vlm_nav.nodes.nav_view", "--ros-args",
            "-p", "max_hz:=20.0", "-p", "width:=256", "-p", "broadcast_tf:=true",
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    rclpy.init()
    robot, executor = Robot(), SingleThreadedExecutor()
    executor.add_node(robot)

    def spin() -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield robot
        assert process.poll() is None
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_S)
        rclpy.shutdown()
        thread.join(LIMIT_S)
        assert process.returncode == 0, errors


LEFT_END, RIGHT_END = slice(0, 80), slice(176, 256)
"""Columns of the state and of the link."""


def test_a_goal_is_seen_from_decision_to_hold(robot: Robot) -> None:
    odd = NavigationAction(goal=7, step=0, kind=99, size=99)
    stats = DecodingStats(estimated_acceptance=0.9, link_rtt_s=-1.0, total_s=1.5, link="nominal")
    robot.until_shown([(RIGHT_END, GREEN)], {"vlm_nav/decision": odd, "decoding_stats": stats})
    left = NavigationAction(goal=7, step=3, kind=NavigationAction.TURN_LEFT, size=NavigationAction.LARGE, source=1)
    feedback = NavigateByInstruction.Impl.FeedbackMessage()
    feedback.feedback.link_state = "degraded"
    sent: dict[str, Any] = {"vlm_nav/decision": left, FEEDBACK: feedback, "navigation_state": String(data="moving")}
    robot.until_shown([(LEFT_END, GREEN), (RIGHT_END, AMBER)], sent)
    assert robot.last["annotated/compressed"].header.frame_id == "front_camera_optical_frame"
    feedback.feedback.link_state = "hold"
    sent["navigation_state"] = String(data="holding: verifier lost: is it running?")
    robot.until_shown([(LEFT_END, AMBER), (RIGHT_END, RED)], sent)
    until(lambda: "/tf" in robot.last, "the transform")
    (transform,) = robot.last["/tf"].transforms
    assert (transform.header.frame_id, transform.child_frame_id) == ("dog1/odom", "base_link")
    assert (transform.transform.translation.x, transform.transform.rotation.w) == (1.0, 1.0)
