"""go2_camera as a process: its transitions, what it publishes, and sources that go and come back."""

from __future__ import annotations

import signal
import sys
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage
from unitree_api.msg import Request

from tests.cameras import HEIGHT, WIDTH, frame
from tests.system.conftest import LIMIT_S, until
from tests.system.spinning import Client
from tests.system.test_find import Process
from tests.system.videohub import GREY

STRAIGHT = {
    "fx": 400.0, "fy": 400.0, "cx": 319.5, "cy": 179.5, "k1": 0.0, "k2": 0.0, "p1": 0.0, "p2": 0.0,
    "source_width": WIDTH, "source_height": HEIGHT, "fov_deg": 60.0, "width": 200, "height": 100,
}  # fmt: skip
"""Calibration of `tests.cameras`, and a view inside of it."""


class Viewer(Client):
    """What a nav2 engineer would look at."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[CompressedImage] = []
        self.infos: list[CameraInfo] = []
        self.beats: list[Header] = []
        self.transforms: dict[str, Any] = {}
        self.health: dict[str, Any] = {}
        self.reports = 0
        subscribe = self.node.create_subscription
        subscribe(CompressedImage, "camera/image/compressed", self.images.append, qos_profile_sensor_data)
        subscribe(CameraInfo, "camera/camera_info", self.infos.append, qos_profile_sensor_data)
        subscribe(Header, "heartbeat/go2_camera", self.beats.append, 10)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)

    def listen_to_tf(self) -> None:
        """Subscribe late, as a viewer that is opened in the middle of a run."""
        qos = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.node.create_subscription(TFMessage, "/tf_static", self._on_tf, qos)

    def goes(self, *transitions: int) -> bool:
        """Have the camera make transitions and return whether it made all of them."""
        return all(self.change("go2_camera", each) for each in transitions)

    def image(self) -> np.ndarray:
        """Return the pixels of the next image."""
        seen = len(self.images)
        until(lambda: len(self.images) > seen, "an image")
        image = cv2.imdecode(np.frombuffer(self.images[-1].data, np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        return image

    def is_quiet(self) -> bool:
        """Whether no image came between two reports; those that were on its way come before."""
        self.level()
        seen = len(self.images)
        self.level()
        return len(self.images) == seen

    def level(self) -> int:
        """Return the camera's diagnostic level as of the next report."""
        seen = self.reports
        until(lambda: self.reports > seen and "go2_camera: camera" in self.health, "diagnostics")
        return int(self.health["go2_camera: camera"].level[0])

    def _on_tf(self, message: TFMessage) -> None:
        self.transforms.update({each.child_frame_id: each for each in message.transforms})

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.health.update({status.name: status for status in message.status})
        self.reports += 1


@pytest.fixture
def client() -> Iterator[Viewer]:
    with closing(Viewer()) as client:
        yield client


@contextmanager
def process(module: str, *remaps: str, status: int = 0, **parameters: Any) -> Iterator[Process]:
    """Run a node with parameters; it is ended by SIGINT, as a terminal does, with this status."""
    words = [
        f"{name}:={str(value).lower() if isinstance(value, bool) else value}" for name, value in parameters.items()
    ]
    arguments = [part for word in words for part in ("-p", word)] + [part for remap in remaps for part in ("-r", remap)]
    running = Process(sys.executable, "-m", module, "--ros-args", *arguments)
    try:
        yield running
        running.process.send_signal(signal.SIGINT)
        assert running.end() == status
    finally:
        running.process.kill()


def stamp(message: Any) -> float:
    return float(message.header.stamp.sec + message.header.stamp.nanosec * 1e-9)


def camera(*remaps: str, **parameters: Any) -> Any:
    return process("spec_vlm_nav.nodes.go2_camera", *remaps, **parameters)


def test_a_driver_through_all_transitions(client: Viewer) -> None:
    message = CompressedImage(format="png", data=array("B", bytes(cv2.imencode(".png", frame(0))[1])))
    images = client.node.create_publisher(CompressedImage, "/driver/compressed", qos_profile_sensor_data)
    client.node.create_timer(0.05, lambda: images.publish(message))
    with camera(source="topic:/driver/compressed", max_hz=15.0, latency_s=0.5, mount_pitch=0.1, **STRAIGHT):
        assert client.goes(Transition.TRANSITION_CONFIGURE)
        client.listen_to_tf()
        until(lambda: len(client.transforms) == 2, "static transforms")
        mount, optical = client.transforms["front_camera_link"], client.transforms["front_camera_optical_frame"]
        assert (mount.header.frame_id, optical.header.frame_id) == ("base_link", "front_camera_link")
        assert mount.transform.translation.x == 0.327 and mount.transform.rotation.w == 1.0, "the image is level"
        assert optical.transform.rotation.x == -0.5
        assert not client.images and not client.beats, "a node that is not active publishes nothing"

        assert client.goes(Transition.TRANSITION_ACTIVATE)
        image = client.image()
        assert image.shape == (100, 200, 3) and client.images[-1].format == "jpeg"
        assert image[50, :90].mean() < 70 and image[50, 110:].mean() > 190
        until(lambda: bool(client.beats), "heartbeat")
        until(
            lambda: bool(set(map(stamp, client.images)) & set(map(stamp, client.infos))), "image and info of one time"
        )
        info = client.infos[-1]
        assert (info.width, info.height, info.distortion_model) == (200, 100, "plumb_bob")
        assert info.k[0] == pytest.approx(100 / np.tan(np.radians(30))) and info.k[2] == 99.5
        assert info.p[0] == info.k[0] and info.p[6] == info.k[5] and not any(info.d)
        assert info.header.frame_id == client.images[-1].header.frame_id == "front_camera_optical_frame"
        age = client.node.get_clock().now().nanoseconds * 1e-9 - stamp(info)
        assert age > 0.5, "stamped before its arrival, by the latency"
        until(lambda: client.level() == 0, "healthy")

        assert client.goes(Transition.TRANSITION_DEACTIVATE)
        until(client.is_quiet, "no frame any more")
        again = (Transition.TRANSITION_CLEANUP, Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
        assert client.goes(*again)
        assert client.image().shape == (100, 200, 3)


def times_lost(camera: Process) -> int:
    return sum("no frame from videohub" in line for line in list(camera.lines))


def test_the_robots_calls_are_lost_and_found(client: Viewer) -> None:
    with camera(autostart=True, max_hz=8.0, reconnect_s=1.0, videohub_timeout_s=0.5) as running:
        with process("tests.system.videohub"):
            image = client.image()
            assert image.shape == (224, 224, 3)
            assert abs(float(image[112, 20:-20].mean()) - GREY) < 4
            assert abs(float(image[:30].mean()) - GREY) < 4, "what the lens does not see repeats its edge"
            until(lambda: client.level() == 0, "healthy")
            # Discovery may have taken longer than reconnect_s.
            lost = times_lost(running)
        until(lambda: client.level() == 2, "unhealthy")
        until(lambda: times_lost(running) > lost, "a line in the log")
        with process("tests.system.videohub"):
            client.image()
            until(lambda: client.level() == 0, "healthy again")
    assert running.has("frames from videohub again")


def test_raw_images_of_another_node_are_frames(client: Viewer) -> None:
    mosaic = np.full((48, 64), 20, np.uint8)
    mosaic[::2, ::2] = 220  # red of rggb
    message = Image(height=48, width=64, encoding="bayer_rggb8", step=64, data=array("B", mosaic.tobytes()))
    images = client.node.create_publisher(Image, "/front/image_raw", qos_profile_sensor_data)
    client.node.create_timer(0.05, lambda: images.publish(message))
    view = {"fov_deg": 0.0, "source_width": 64, "source_height": 48, "width": 64, "height": 48}
    with camera(autostart=True, source="topic:/front/image_raw", **view):
        blue, green, red = client.image()[8:-8, 8:-8].mean(axis=(0, 1))
        assert red > 180 and green < 60 and blue < 60
        until(lambda: client.level() == 0, "healthy")


def test_a_camera_that_would_hear_itself_or_call_the_sport_service_is_refused(client: Viewer) -> None:
    """Of the sport service the id of an image call means Damp: the robot would drop."""
    calls: list[Request] = []
    client.node.create_subscription(Request, "/api/sport/request", calls.append, 10)
    with (
        camera("api/videohub/request:=/api/sport/request", status=2, autostart=True) as calling,
        camera("__ns:=/other", status=2, autostart=True, source="topic:camera/image/compressed") as hearing,
    ):
        assert calling.process.wait(LIMIT_S) == 2
        until(lambda: hearing.has("is what go2_camera publishes itself"), "the reason")
    assert calling.has("Damp") and not calls
