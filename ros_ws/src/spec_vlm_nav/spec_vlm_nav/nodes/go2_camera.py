"""The front camera as sensor_msgs/CompressedImage and CameraInfo, with its frames: `spec_vlm_nav.camera` on ROS."""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Iterable
from typing import Any

import cv2
from geometry_msgs.msg import TransformStamped
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.duration import Duration
from rclpy.publisher import Publisher
from rclpy.qos import qos_profile_sensor_data
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo, CompressedImage
from tf2_msgs.msg import TFMessage

from spec_vlm_nav.camera import CAMERA, MOUNT, OPTICAL, Capture, Quaternion, Source, quaternion
from spec_vlm_nav.cameras import source_of
from spec_vlm_nav.cameras.topic import ImageTopic
from spec_vlm_nav.cameras.videohub import ANSWERS, REQUESTS, SERVICE, Videohub, check_topic, write
from spec_vlm_nav.diagnostics import Status
from spec_vlm_nav.nodes.conversions import message_type
from spec_vlm_nav.nodes.heartbeat import Heartbeat
from spec_vlm_nav.nodes.managed import ManagedNode, run_managed
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import steady_timer
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.nodes.topics import LATCHED
from spec_vlm_nav.optics import Image, Optics

WATCH_S = 0.2


class Go2Camera(ManagedNode):
    """Configure checks the source, activate opens it, deactivate closes it; frames come from the capture's thread."""

    def __init__(self) -> None:
        super().__init__("go2_camera")
        self._settings, self._mount = settings(self, CAMERA), settings(self, MOUNT)
        self._source: Source | None = None
        self._capture: Capture | None = None
        self._optics: Optics | None = None
        self._calls: Publisher | None = None
        """Publishes the calls of a camera that is called."""
        self._answers: Subscription | None = None
        """Subscription to their answers, or to images that another node publishes."""
        self._images = self.create_publisher(CompressedImage, "camera/image/compressed", qos_profile_sensor_data)
        self._infos = self.create_publisher(CameraInfo, "camera/camera_info", qos_profile_sensor_data)
        self._static = self.create_publisher(TFMessage, "/tf_static", LATCHED)
        self.heartbeat = Heartbeat(self, lambda: self.active)
        steady_timer(self, WATCH_S, self._watch, MutuallyExclusiveCallbackGroup())

    def configure(self) -> None:
        """Check the source and publish where the camera sits."""
        chosen = self._settings
        if chosen.source.source == SERVICE:
            self._request_type = message_type(REQUESTS.kind)
            self._calls = self.create_publisher(self._request_type, REQUESTS.name.lstrip("/"), 1)
            check_topic(self._calls.topic_name)
            kind = message_type(ANSWERS.kind)
            self._answers = subscribe(self, kind, ANSWERS.name.lstrip("/"), self._on_answer, 10)
        source = self._source = source_of(chosen.source, chosen.max_hz, self._call)
        if isinstance(source, ImageTopic):
            if self.resolve_topic_name(source.topic) == self._images.topic_name:
                raise ValueError(f"source {source.name} is what go2_camera publishes itself; name another topic")
            kind = message_type(source.kind)
            self._answers = subscribe(self, kind, source.topic, source.received, qos_profile_sensor_data)
        self._capture = Capture(source, chosen.max_hz, chosen.reconnect_s, self._publish, self.get_logger())
        self._static.publish(TFMessage(transforms=self._transforms()))

    def activate(self) -> None:
        """Open the source, in the background."""
        assert self._capture is not None
        self._capture.start(time.monotonic())

    def deactivate(self) -> None:
        """Publish no more and close the source."""
        if self._capture is not None:
            self._capture.stop()

    def cleanup(self) -> None:
        """Close the source and the calls."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.stop()
        calls, answers, self._calls, self._answers = self._calls, self._answers, None, None
        if calls is not None:
            self.destroy_publisher(calls)
        if answers is not None:
            self.destroy_subscription(answers)
        self._optics = None

    def health(self) -> Iterable[Status]:
        """Return rate, age, source, reconnects, decode errors."""
        if self._capture is not None:
            yield self._capture.health(time.monotonic())

    def _watch(self) -> None:
        capture = self._capture
        if capture is not None:
            capture.tick(time.monotonic())

    def _call(self, identity: int) -> None:
        calls = self._calls
        if calls is not None:
            request = self._request_type()
            write(identity, request)
            calls.publish(request)

    def _on_answer(self, response: Any) -> None:
        if isinstance(self._source, Videohub):
            # The field is int8[]; its bytes are the JPEG.
            header = response.header
            self._source.answered(header.identity.id, header.status.code, bytes(response.binary))

    def _publish(self, image: Image, arrived: float) -> None:
        """Publish a frame. Raises ValueError for a size that the calibration does not fit."""
        since = Duration(seconds=time.monotonic() - arrived + self._settings.latency_s)
        stamp = (self.get_clock().now() - since).to_msg()
        height, width = image.shape[:2]
        if self._optics is None or self._optics.source_size != (width, height):
            at = self._mount
            self._optics = Optics(
                self._settings.lens, self._settings.view, width, height, at.mount_roll, at.mount_pitch
            )
            shown = f"{self._optics.covered:.0%} of {self._settings.view.width} x {self._settings.view.height} pixels"
            self.get_logger().info(f"frames of {width} x {height} pixels fill {shown}")
        optics = self._optics
        quality = [cv2.IMWRITE_JPEG_QUALITY, self._settings.jpeg_quality]
        done, jpeg = cv2.imencode(".jpg", optics.apply(image), quality)
        if not done:
            raise ValueError(f"a frame of {width} x {height} pixels cannot be encoded as JPEG")
        message = CompressedImage(format="jpeg", data=array("B", jpeg.tobytes()))
        info = CameraInfo(width=optics.camera.width, height=optics.camera.height)
        for each in (message, info):
            each.header.stamp, each.header.frame_id = stamp, self._mount.frame_id
        info.d = list(optics.camera.distortion)
        info.k = optics.camera.matrix.ravel().tolist()
        # All zeros say that a camera is not calibrated.
        if optics.camera.distortion:
            info.distortion_model = "plumb_bob"
            info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
        info.p = [value for row in optics.camera.matrix.tolist() for value in (*row, 0.0)]
        self._images.publish(message)
        self._infos.publish(info)

    def _transforms(self) -> list[TransformStamped]:
        at, view = self._mount, self._settings.view
        # The frames are those of the image that is published, which a set field of view levels.
        roll, pitch = (0.0, view.tilt) if view.fov_deg else (at.mount_roll, at.mount_pitch)
        turn = quaternion(roll, pitch, at.mount_yaw)
        return [
            self._transform(at.base_frame, at.link_frame, (at.mount_x, at.mount_y, at.mount_z), turn),
            self._transform(at.link_frame, at.frame_id, (0.0, 0.0, 0.0), OPTICAL),
        ]

    def _transform(
        self, parent: str, child: str, shift: tuple[float, float, float], turn: Quaternion
    ) -> TransformStamped:
        message = TransformStamped(child_frame_id=child)
        message.header.stamp, message.header.frame_id = self.get_clock().now().to_msg(), parent
        to, rotation = message.transform.translation, message.transform.rotation
        to.x, to.y, to.z = shift
        rotation.x, rotation.y, rotation.z, rotation.w = turn
        return message


def main() -> None:
    """Run the node."""
    sys.exit(run_managed(Go2Camera))


if __name__ == "__main__":
    main()
