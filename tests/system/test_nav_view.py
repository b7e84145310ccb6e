"""nav_view as a process of its own: what a person sees of a goal, also one who looks later."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import pytest
import rclpy
from nav_msgs.msg import Odometry, Path
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import ActionStatus, DecodingStats, NavigationAction
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import Marker, MarkerArray

from spec_vlm_nav.annotate import AMBER, BAR, GREEN, RED
from spec_vlm_nav.nodes.nav_view import FEEDBACK, LATCHED
from tests.system.conftest import LIMIT_S, until

FRAME = bytes(cv2.imencode(".jpg", np.full((224, 224, 3), 90, np.uint8))[1])
GOAL = 7
TOPIC_OF = {"decision": "vlm_nav/decision", "feedback": FEEDBACK}


class Robot(Node):
    """Publishes what the real nodes would, again and again, and keeps what comes back."""

    def __init__(self) -> None:
        super().__init__("robot")
        self.last: dict[str, Any] = {}
        self._out = {
            "camera/image/compressed": self.create_publisher(
                CompressedImage, "camera/image/compressed", qos_profile_sensor_data
            ),
            "odom": self.create_publisher(Odometry, "odom", qos_profile_sensor_data),
            "vlm_nav/decision": self.create_publisher(NavigationAction, "vlm_nav/decision", 10),
            "navigation_action": self.create_publisher(NavigationAction, "navigation_action", 10),
            "action_status": self.create_publisher(ActionStatus, "action_status", 10),
            "decoding_stats": self.create_publisher(DecodingStats, "decoding_stats", 10),
            "navigation_state": self.create_publisher(String, "navigation_state", 10),
            "instruction": self.create_publisher(String, "instruction", LATCHED),
            FEEDBACK: self.create_publisher(NavigateByInstruction.Impl.FeedbackMessage, FEEDBACK, 10),
        }
        self.see("annotated/compressed", CompressedImage, qos_profile_sensor_data)
        self.see("/tf", TFMessage, 100)
        self.see("path", Path, LATCHED)
        self.see("markers", MarkerArray, LATCHED)
        self.walking = False
        self._odometry = Odometry()
        self._odometry.header.frame_id = "dog1/odom"
        self._odometry.pose.pose.orientation.w = 1.0
        self.create_timer(0.02, self._tick)

    def see(self, topic: str, kind: Any, qos: Any) -> None:
        self.create_subscription(kind, topic, lambda message: self.last.update({topic: message}), qos)

    def send(self, topic: str, message: Any) -> None:
        self._out[topic].publish(message)

    def knows(self, topics: list[str]) -> bool:
        return all(self._out[topic].get_subscription_count() for topic in topics)

    @property
    def stands(self) -> bool:
        return bool(self._odometry.pose.pose.position.x == 1.0)

    def _tick(self) -> None:
        stamp = self.get_clock().now().to_msg()
        at = self._odometry.pose.pose.position
        at.x = min(at.x + 0.01 * self.walking, 1.0)
        self._odometry.header.stamp = stamp
        self.send("odom", self._odometry)
        image = CompressedImage(format="jpeg", data=array("B", FRAME))
        image.header.stamp, image.header.frame_id = stamp, "front_camera_optical_frame"
        self.send("camera/image/compressed", image)


@dataclass
class View:
    robot: Robot
    process: subprocess.Popen[str]

    @property
    def image(self) -> Any:
        data = np.frombuffer(bytes(self.robot.last["annotated/compressed"].data), np.uint8)
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR)
        assert pixels is not None
        return pixels[..., ::-1].astype(int)

    def shows(self, colour: tuple[int, int, int], part: Callable[[Any], Any]) -> bool:
        return "annotated/compressed" in self.robot.last and bool(
            (np.abs(part(self.image) - colour).max(axis=2) < 25).mean() > 0.05
        )

    def until(self, condition: Callable[[], Any], what: str, **sent: Any) -> None:
        """Send messages until what must follow does: the first ones may come before their reader is found."""

        def follows() -> bool:
            for topic, message in sent.items():
                self.robot.send(TOPIC_OF.get(topic, topic), message)
            return bool(condition())

        until(follows, what)

    def arrows(self) -> list[Marker]:
        found = self.robot.last.get("markers", MarkerArray()).markers
        return [marker for marker in found if marker.action == Marker.ADD and marker.type == Marker.ARROW]

    def colours(self) -> list[tuple[int, ...]]:
        return [tuple(round(255 * part) for part in (m.color.r, m.color.g, m.color.b)) for m in self.arrows()]

    def words(self) -> list[str]:
        found = self.robot.last.get("markers", MarkerArray())
        return [marker.text for marker in found.markers if marker.type == Marker.TEXT_VIEW_FACING]


@pytest.fixture
def view() -> Iterator[View]:
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
        until(lambda: robot.knows(["vlm_nav/decision", "action_status", "navigation_state", FEEDBACK]), "node ready")
        yield View(robot, process)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_S)
        rclpy.shutdown()
        thread.join(LIMIT_S)
        assert process.returncode == 0, errors


def left_bar(image: Any) -> Any:
    return image[:BAR, : image.shape[1] // 3]


def right_bar(image: Any) -> Any:
    return image[:BAR, 2 * image.shape[1] // 3 :]


def test_a_goal_is_seen_from_decision_to_hold_and_by_one_who_comes_late(view: View) -> None:
    robot = view.robot
    moving, feedback = String(data="moving"), NavigateByInstruction.Impl.FeedbackMessage()
    feedback.feedback.link_state = "degraded"
    left = NavigationAction(goal=GOAL, step=3, kind=NavigationAction.TURN_LEFT, size=NavigationAction.LARGE, source=1)
    robot.send("instruction", String(data="find the blue mug"))
    late = NavigationAction(goal=GOAL, step=2, kind=NavigationAction.FORWARD, size=NavigationAction.SMALL)
    early = NavigationAction(
        goal=GOAL, step=3, kind=NavigationAction.TURN_LEFT, size=NavigationAction.SMALL, complete=False
    )
    view.until(view.arrows, "the answer's beginning on the map", navigation_action=early)
    view.until(lambda: view.colours() == [AMBER], "the decision on the map", decision=left)
    robot.send("navigation_action", late)
    robot.walking = True
    view.until(
        lambda: view.shows(GREEN, left_bar) and view.shows(AMBER, right_bar), "state and link on the image",
        navigation_state=moving, feedback=feedback,
    )  # fmt: skip
    assert robot.last["annotated/compressed"].header.frame_id == "front_camera_optical_frame"
    running = ActionStatus(goal=GOAL, step=3, outcome=ActionStatus.RUNNING, progress=0.2, remaining=0.5)
    view.until(lambda: "turn left large" in view.words(), "the running action on the map", action_status=running)
    # A status of another goal is not this action's.
    other = ActionStatus(goal=GOAL - 1, step=3, outcome=ActionStatus.RUNNING)
    view.until(lambda: "turn left large" not in view.words(), "the other goal's status", action_status=other)
    (arrow,) = view.arrows()
    assert 2.0 * math.atan2(arrow.pose.orientation.z, arrow.pose.orientation.w) == pytest.approx(math.pi / 4, abs=1e-3)
    assert arrow.header.frame_id == "dog1/odom" and arrow.scale.x == pytest.approx(0.3)
    held, feedback.feedback.link_state = String(data="holding: verifier lost: is it running?"), "hold"
    view.until(
        lambda: view.words() == ["HOLD: verifier lost: is it running?"] and view.shows(RED, right_bar), "the hold",
        navigation_state=held, feedback=feedback,
    )  # fmt: skip
    until(lambda: view.shows(AMBER, left_bar), "the hold on the image")
    until(lambda: "path" in robot.last and len(robot.last["path"].poses) > 10 and "/tf" in robot.last, "the path")
    (transform,) = robot.last["/tf"].transforms
    assert (transform.header.frame_id, transform.child_frame_id) == ("dog1/odom", "base_link")
    assert 0.0 < transform.transform.translation.x <= 1.0 and transform.transform.rotation.w == 1.0
    # One who looks only now gets the whole of it, although nothing changes any more.
    until(lambda: robot.stands, "the robot's end of the way")
    robot.last.clear()
    robot.see("path", Path, LATCHED)
    robot.see("markers", MarkerArray, LATCHED)
    until(lambda: {"path", "markers"} <= robot.last.keys(), "the map for a late viewer")
    assert robot.last["markers"].markers[0].action == Marker.DELETEALL
    path = robot.last["path"]
    assert path.header.frame_id == "dog1/odom" and path.poses[-1].pose.position.x > path.poses[0].pose.position.x


def test_figures_of_an_answer_and_numbers_that_are_no_action_do_not_end_it(view: View) -> None:
    view.until(
        lambda: view.shows(GREEN, right_bar), "the last answer's link, without feedback",
        decision=NavigationAction(goal=GOAL, step=0, kind=99, size=99),
        action_status=ActionStatus(goal=GOAL, outcome=1, progress=math.nan, remaining=math.nan),
        decoding_stats=DecodingStats(estimated_acceptance=0.9, link_rtt_s=-1.0, total_s=1.5, link="nominal"),
    )  # fmt: skip
    assert view.process.poll() is None
