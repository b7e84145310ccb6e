"""What vlm_nav takes in: image files of any format, decoded when somebody asks, and odometry that may be wrong."""

from __future__ import annotations

import io
import math
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nav_msgs.msg import Odometry
from PIL import Image
from rclpy.duration import Duration
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage

from spec_vlm_nav.diagnostics import Level
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.nodes import conversions, inputs, vlm_nav
from spec_vlm_nav.nodes.inputs import Inputs
from spec_vlm_nav.nodes.vlm_nav import FIRST_FRAME_S, VlmNav
from speculation.frames import decode_jpeg
from speculation.images import view_jpeg

STALE_S = 1.0


class Sight:
    """Inputs on a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10.0
        self.node = Node("vlm_nav", cli_args=["--ros-args", "-r", "camera/image/compressed:=/front/compressed"])
        self.inputs = Inputs(self.node)
        for module in (inputs, conversions):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def close(self) -> None:
        self.inputs.close()
        self.node.destroy_node()

    def give(self, data: bytes, declared: str = "jpeg", age_s: float = 0.0) -> None:
        image = CompressedImage(format=declared, data=array("B", data))
        image.header.frame_id = "front"
        if age_s:
            self.inputs._camera_clock = SimpleNamespace(age=lambda *_: age_s, skew=0.0, is_off=False)  # type: ignore
        self.inputs._on_image(image)

    def move(self, x: float) -> None:
        """Have odometry show the robot at `x`, 20 ms later."""
        self.now += 0.02
        message = Odometry()
        message.header.stamp.sec, message.header.stamp.nanosec = int(self.now), int(self.now % 1.0 * 1e9)
        message.pose.pose.position.x, message.pose.pose.orientation.w = x, 1.0
        self.inputs._on_odometry(message)

    def report(self, level: bytes, message: str, name: str = "go2_camera: camera") -> None:
        (topic,) = (each for each in self.node.subscriptions if each.topic_name == "/diagnostics")
        topic.callback(DiagnosticArray(status=[DiagnosticStatus(name=name, level=level, message=message)]))


@pytest.fixture
def sight(ros: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sight]:
    made = Sight(monkeypatch)
    yield made
    made.close()


def picture(kind: str = "JPEG", size: tuple[int, int] = (64, 48), mode: str = "RGB") -> bytes:
    ramp = np.add.outer(np.arange(size[1]), np.arange(size[0])) % 256
    file = io.BytesIO()
    Image.fromarray(ramp.astype(np.uint8)).convert(mode).save(file, kind)
    return file.getvalue()


def test_frames_that_nobody_asks_about_are_not_decoded(sight: Sight, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bytes]()

    def counting(data: bytes, declared: str) -> bytes:
        decoded.append(data)
        return view_jpeg(data, declared)

    monkeypatch.setattr(inputs, "view_jpeg", counting)
    for _ in range(64):
        sight.now += 1 / 64
        sight.give(picture())
        assert sight.inputs.frame_after(sight.now, STALE_S) is None, "it was taken before"
    assert not decoded
    for _ in range(5):
        frame = sight.inputs.frame_after(sight.now - 0.001, STALE_S)
        assert frame is not None and frame.jpeg == picture() and frame.stamp.frame_id == "front"
        assert sight.inputs.missing(STALE_S) == sight.inputs.problem() == ""
    assert len(decoded) == 1


@pytest.mark.parametrize(("kind", "declared"), [("PNG", "rgb8; png compressed bgr8"), ("WEBP", ""), ("JPEG", "png")])
def test_a_picture_of_any_file_format_is_a_frame_whatever_its_message_calls_it(
    sight: Sight, kind: str, declared: str
) -> None:
    sight.give(picture(kind), declared)
    frame = sight.inputs.frame_after(9.0, STALE_S)
    assert frame is not None and frame.jpeg.startswith(b"\xff\xd8")
    seen, sent = decode_jpeg(frame.jpeg).astype(int), np.asarray(Image.open(io.BytesIO(picture(kind))).convert("RGB"))
    assert seen.shape == (48, 64, 3) and np.abs(seen - sent).mean() < 4.0


@pytest.mark.parametrize(
    ("data", "declared", "words"),
    [
        (picture(size=(2000, 8)), "jpeg", "one side is more than 200 times the other; set the camera's resolution"),
        (picture()[:-100], "jpeg", "does not decode as JPEG: image file is truncated"),
        (b"", "jpeg", "an image of 0 bytes, format 'jpeg', is empty"),
    ],
)
def test_what_is_no_picture_is_no_frame_and_its_reason_reaches_goal_and_diagnostics(
    sight: Sight, data: bytes, declared: str, words: str
) -> None:
    sight.give(data, declared)
    assert sight.inputs.frame_after(9.0, STALE_S) is None
    assert words in sight.inputs.problem() and words in sight.inputs.missing(STALE_S)
    health = sight.inputs.health(STALE_S)
    assert health.level is Level.ERROR and words in health.message
    sight.now += 0.1
    sight.give(picture())
    assert sight.inputs.frame_after(9.0, STALE_S) is not None and not sight.inputs.problem()
    assert sight.inputs.health(STALE_S).level is Level.OK


def test_a_frame_that_is_missing_or_old_is_named_with_its_topic_or_limit(sight: Sight) -> None:
    assert sight.inputs.missing(STALE_S) == "no camera frame has come on /front/compressed"
    assert sight.inputs.health(STALE_S).level is Level.ERROR
    sight.give(picture(), age_s=0.25)
    sight.now += 0.5
    assert sight.inputs.missing(STALE_S) == "" and sight.inputs.frame_after(9.0, STALE_S) is not None
    assert sight.inputs.missing(0.5) == "the newest camera frame is 0.8 s old, stale_frame_s is 0.5"
    assert sight.inputs.frame_after(9.0, 0.5) is None
    assert sight.inputs.health(0.5).level is Level.WARN


def test_what_go2_camera_says_of_itself_is_the_reason_where_no_frame_comes(sight: Sight) -> None:
    sight.report(DiagnosticStatus.ERROR, "another's", "/dog2/go2_camera: camera")
    assert sight.inputs.problem() == ""
    sight.report(DiagnosticStatus.ERROR, "no frames: another aspect")
    assert sight.inputs.problem() == "go2_camera: no frames: another aspect"
    words = "no camera frame has come on /front/compressed; go2_camera: no frames: another aspect"
    assert sight.inputs.missing(STALE_S) == words
    sight.report(DiagnosticStatus.OK, "frames arrive")
    assert sight.inputs.problem() == ""
    sight.report(DiagnosticStatus.ERROR, "no frames: another aspect")
    sight.now += 5.0
    assert sight.inputs.problem() == "", "it may have ended since"


def test_the_distance_of_a_goal_counts_no_bad_odometry(sight: Sight) -> None:
    for x in (0.0, 0.01, 0.02, math.nan, 0.03, 5.0, *[5.0] * 40, 5.01, 5.02):
        sight.move(x)
    assert sight.inputs.travelled == pytest.approx(0.04, abs=1e-6)


def test_a_frame_that_was_on_its_way_for_long_shows_where_the_robot_was_then(sight: Sight) -> None:
    def place(age_s: float) -> PlanarPose | None:
        image = CompressedImage(format="jpeg", data=array("B", picture()))
        image.header.stamp = (sight.node.get_clock().now() - Duration(seconds=age_s)).to_msg()
        sight.inputs._on_image(image)
        seen = sight.inputs.frame_after(sight.now - 2.0, 2.0)
        assert seen is not None
        return seen.place

    assert place(0.0) is None, "the camera's clock is ours"
    for step in range(50):
        sight.move(0.01 * step)
    new, old = place(0.0), place(0.5)
    assert new is not None and new.x > 0.44
    assert old is not None and old.x == pytest.approx(0.24, abs=0.05)
    sight.move(math.nan)
    assert place(0.5) is None, "before bad odometry is nowhere"


class Blind:
    """What `VlmNav.activate` needs of its node; a frame comes after so many seconds, or never."""

    def __init__(self, frame_after_s: float = math.inf, ends_after_s: float = math.inf) -> None:
        self.now, self._ends_after_s = 0.0, ends_after_s
        self.config, self.noted = NavigatorConfig(), list[str]()
        self.inputs = SimpleNamespace(missing=lambda _: "" if self.now >= frame_after_s else "no camera frame has come")
        self._wait = self.noted.append

    @property
    def ending(self) -> bool:
        return self.now >= self._ends_after_s

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def activate(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlm_nav, "time", SimpleNamespace(monotonic=lambda: node.now, sleep=node.sleep))
    VlmNav.activate(node)


def test_vlm_nav_is_not_active_without_a_camera_frame_and_says_so_while_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is activated before the robot stands up."""
    node = Blind()
    with pytest.raises(
        RuntimeError, match=r"no camera frame has come, 30 s after the start: is the launch argument cam"
    ):
        activate(node, monkeypatch)
    assert node.now == pytest.approx(FIRST_FRAME_S, abs=0.2)
    assert set(node.noted) == {"waiting for the camera: no camera frame has come"} and len(node.noted) > 3
    late = Blind(frame_after_s=4.0)
    activate(late, monkeypatch)
    assert late.now == pytest.approx(4.0, abs=0.1) and not late.noted
    ended = Blind(ends_after_s=1.0)
    with pytest.raises(RuntimeError):
        activate(ended, monkeypatch)
    assert ended.now == pytest.approx(1.0, abs=0.1), "Ctrl-C is not waited for"
