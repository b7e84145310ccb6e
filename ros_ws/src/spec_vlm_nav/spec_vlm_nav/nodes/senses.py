"""What vlm_nav takes in: camera frames, odometry and the executor's statuses. The newest counts."""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.msg import ActionStatus

from spec_vlm_nav.body import Frame
from spec_vlm_nav.camera_clock import CameraClock
from spec_vlm_nav.diagnostics import Arrivals, Level, Status
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.nodes.common import sample_of, seconds_of
from spec_vlm_nav.nodes.subscriptions import Reader
from spec_vlm_nav.odometry import OdometryCheck
from speculation.frames import is_jpeg

CAMERA = "camera/image/compressed"
PLACE_S = 0.3
"""Older odometry is no place."""
PLACES_S = 5.0
"""Places are kept for so long: no frame is used that is older."""
READ_S = 0.1
STATUSES = 16
"""Executor statuses kept, one an action."""


class Senses:
    """Subscriptions that a thread of their own reads; to be closed before the node is destroyed."""

    def __init__(self, node: Node) -> None:
        self.frame: Frame | None = None
        self.statuses: dict[tuple[int, int], ActionStatus] = {}
        """The last of each of the latest actions, by goal and step."""
        self.status_at = -math.inf
        """Of the executor's last message, by the steady clock."""
        self.travelled = 0.0
        """Metres, by odometry."""
        self._node = node
        self._frames, self._lock = Arrivals(), threading.Lock()
        self._camera_clock, self._skew_noted = CameraClock(), False
        self._odometry = OdometryCheck()
        self._place: tuple[PlanarPose, float] | None = None
        self._places: deque[tuple[PlanarPose, float]] = deque()
        """The latest, without a gap of bad odometry, the newest last; for `_on_image`."""
        self._reader, self._end = Reader(node), threading.Event()
        self._reader.subscribe(CompressedImage, CAMERA, self._on_image, qos_profile_sensor_data)
        self._reader.subscribe(Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        self._reader.subscribe(ActionStatus, "action_status", self._on_status, 10)
        self._thread = threading.Thread(target=self._read, name="senses", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; safe to repeat."""
        self._end.set()
        self._thread.join()

    def place(self) -> PlanarPose | None:
        """Return where the robot is by odometry, None where that is not known now."""
        place = self._place
        return place[0] if place is not None and time.monotonic() - place[1] <= PLACE_S else None

    def missing(self, stale_s: float) -> str:
        """Return in a sentence why there is no camera frame younger than `stale_s` seconds; empty where there is."""
        frame = self.frame
        if frame is None:
            return f"no camera frame has come on {self._node.resolve_topic_name(CAMERA)}"
        age = time.monotonic() - frame.arrived + frame.age
        return "" if age <= stale_s else f"the newest camera frame is {age:.1f} s old, stale_frame_s is {stale_s:g}"

    def health(self, stale_s: float) -> Status:
        """Return the line about the camera, whose frames are stale when older."""
        now, frame = time.monotonic(), self.frame
        with self._lock:
            age, rate = self._frames.age(now), self._frames.rate(now)
        values = {"rate Hz": rate, "clock skew s": self._camera_clock.skew}
        if age is None or frame is None:
            return Status("camera", Level.ERROR, "no frames", values)
        stale = age + frame.age > stale_s
        values |= {"silence s": age, "frame age s": frame.age}
        return Status("camera", Level.WARN if stale else Level.OK, "stale" if stale else f"{rate:.1f} Hz", values)

    def _read(self) -> None:
        while not self._end.is_set():
            self._reader.take(READ_S)

    def _on_image(self, image: CompressedImage) -> None:
        clock, arrived, data = self._camera_clock, time.monotonic(), bytes(image.data)
        if not is_jpeg(data):
            # No frame: the robot holds for a stale camera until it sends images again.
            words = f"a camera frame of {len(data)} bytes, format {image.format!r}, is no JPEG"
            self._node.get_logger().error(words, throttle_duration_sec=5.0)
            return
        age = clock.age(seconds_of(image.header.stamp), self._node.get_clock().now().nanoseconds * 1e-9)
        with self._lock:
            self._frames.note(arrived)
        if clock.is_off and not self._skew_noted:
            self._skew_noted = True
            words = f"the camera's clock is {clock.skew:.1f} s behind ours: the ages of its frames are estimated"
            self._node.get_logger().warning(words)
        self.frame = Frame(data, arrived, age, image.header, self._place_at(arrived - age))

    def _place_at(self, moment: float) -> PlanarPose | None:
        """Return where the robot was; a frame that was on its way for long shows where it was then."""
        for place, at in reversed(self._places):
            if at <= moment:
                return place if moment - at <= PLACE_S else None
        return None

    def _on_odometry(self, odometry: Odometry) -> None:
        # action_executor reports what is wrong with odometry; here a wrong step is only not counted.
        before, place = self._place, self._odometry.take(sample_of(odometry))
        now = time.monotonic()
        self._place = None if place is None else (place, now)
        if place is None:
            self._places.clear()
        else:
            self._places.append((place, now))
        while self._places and now - self._places[0][1] > PLACES_S:
            self._places.popleft()
        if before is not None and place is not None:
            self.travelled += math.hypot(place.x - before[0].x, place.y - before[0].y)

    def _on_status(self, status: ActionStatus) -> None:
        if status.outcome == ActionStatus.IDLE and not status.goal:
            # An executor that knows of no action was started anew: what ran before runs no more, and how far it came
            # is what was reported last.
            for each in self.statuses.values():
                if each.outcome == ActionStatus.RUNNING:
                    each.outcome, each.message = ActionStatus.IDLE, "action_executor was started anew"
        # In its place where it is there: a reader in between must not miss it.
        self.statuses[status.goal, status.step] = status
        self.status_at = time.monotonic()
        if len(self.statuses) > STATUSES:
            del self.statuses[next(iter(self.statuses))]
