"""What vlm_nav takes in: camera frames, odometry and the executor's statuses. The newest counts.

A frame is decoded when somebody asks for it: a camera may send many more than a goal looks at.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticStatus
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.msg import ActionStatus

from spec_vlm_nav.camera_clock import CameraClock
from spec_vlm_nav.diagnostics import Arrivals, Level, Status
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.navigator_interfaces import Frame
from spec_vlm_nav.nodes.conversions import sample_of, seconds_of
from spec_vlm_nav.nodes.diagnostics import on_lines
from spec_vlm_nav.nodes.process import start_thread
from spec_vlm_nav.nodes.subscriptions import Reader
from spec_vlm_nav.odometry import OdometryCheck
from speculation.images import view_jpeg

CAMERA = "camera/image/compressed"
PLACE_S = 0.3
"""Older odometry is no place."""
PLACES_S = 5.0
"""Places are kept for so long: no frame is used that is older."""
READ_S = 0.1
STATUSES = 16
"""Executor statuses kept, one an action."""
REPORT_S = 3.0
"""What go2_camera says of itself, once a second, counts for so long."""


@dataclass(frozen=True)
class _Arrival:
    """A camera's message, not looked into."""

    image: CompressedImage
    arrived: float
    age: float
    """Age of its frame when it arrived, seconds."""
    place: PlanarPose | None

    @property
    def taken(self) -> float:
        return self.arrived - self.age


class Inputs:
    """Subscriptions that a thread of their own reads; to be closed before the node is destroyed."""

    def __init__(self, node: Node) -> None:
        self.statuses: dict[tuple[int, int], ActionStatus] = {}
        """The last of each of the latest actions, by goal and step."""
        self.status_at = -math.inf
        """Time of the executor's last message, by the steady clock."""
        self.travelled = 0.0
        """Way since the start by odometry, metres."""
        self.fixed_frame = ""
        """The frame in which odometry's poses are."""
        self._node = node
        self._newest: _Arrival | None = None
        self._looked: tuple[_Arrival | None, Frame | None, str] = (None, None, "")
        """The message that was looked into last, and its frame, or why it has none."""
        self._report = ("", -math.inf)
        """What go2_camera said last of itself where it has no frames, and when."""
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
        on_lines(self._reader.subscribe, node, {"go2_camera: camera": self._on_camera_line})
        self._thread = start_thread(node, "inputs", self._read)

    def close(self) -> None:
        """End the thread; safe to repeat."""
        self._end.set()
        self._thread.join()

    def place(self) -> PlanarPose | None:
        """Return where the robot is by odometry, None where that is not known now."""
        place = self._place
        return place[0] if place is not None and time.monotonic() - place[1] <= PLACE_S else None

    def frame_after(self, moment: float, stale_s: float) -> Frame | None:
        """Return the newest frame if it was taken after `moment`, is no older than `stale_s` and a picture, else None.

        `moment` is by the steady clock.
        """
        newest = self._newest
        if newest is None or newest.taken <= moment or time.monotonic() - newest.taken > stale_s:
            return None
        return self._look(newest)[0]

    def problem(self) -> str:
        """Return in a sentence what is wrong with the camera, as far as that is known; empty where nothing is known."""
        newest, now, (words, at) = self._newest, time.monotonic(), self._report
        if newest is not None and now - newest.arrived <= REPORT_S:
            return self._look(newest)[1]
        return words if now - at <= REPORT_S else ""

    def missing(self, stale_s: float) -> str:
        """Return in a sentence why there is no camera frame younger than `stale_s` seconds; empty where there is."""
        newest, problem = self._newest, self.problem()
        if newest is None:
            missing = f"no camera frame has come on {self._node.resolve_topic_name(CAMERA)}"
            return f"{missing}; {problem}" if problem else missing
        age = time.monotonic() - newest.taken
        old = f"the newest camera frame is {age:.1f} s old, stale_frame_s is {stale_s:g}" if age > stale_s else ""
        return problem or old

    def health(self, stale_s: float) -> Status:
        """Return the line about the camera, whose frames are stale when older."""
        now, newest = time.monotonic(), self._newest
        with self._lock:
            age, rate = self._frames.age(now), self._frames.rate(now)
        values = {"rate Hz": rate, "clock skew s": self._camera_clock.skew}
        missing = self.missing(stale_s)
        if age is None or newest is None:
            return Status("camera", Level.ERROR, missing, values)
        values |= {"silence s": age, "frame age s": newest.age}
        if self.problem():
            return Status("camera", Level.ERROR, missing, values)
        return Status("camera", Level.WARN if missing else Level.OK, missing or f"{rate:.1f} Hz", values)

    def _look(self, arrival: _Arrival) -> tuple[Frame | None, str]:
        """Return the frame of a message; None, and why in a sentence, where it has none. A message is decoded once."""
        looked, frame, problem = self._looked
        if looked is not arrival:
            image, frame, problem = arrival.image, None, ""
            try:
                jpeg = view_jpeg(bytes(image.data), image.format)
                frame = Frame(jpeg, arrival.arrived, arrival.age, image.header, arrival.place)
            except ValueError as error:
                problem = f"the camera's frames cannot be used: {error}"
                self._node.get_logger().error(problem, throttle_duration_sec=5.0)
            self._looked = arrival, frame, problem
        return frame, problem

    def _read(self) -> None:
        while not self._end.is_set():
            self._reader.take(READ_S)

    def _on_image(self, image: CompressedImage) -> None:
        clock, arrived = self._camera_clock, time.monotonic()
        age = clock.age(seconds_of(image.header.stamp), self._node.get_clock().now().nanoseconds * 1e-9)
        with self._lock:
            self._frames.note(arrived)
        if clock.is_off and not self._skew_noted:
            self._skew_noted = True
            words = f"the camera's clock is {clock.skew:.1f} s behind ours: the ages of its frames are estimated"
            self._node.get_logger().warning(words)
        self._newest = _Arrival(image, arrived, age, self._place_at(arrived - age))

    def _place_at(self, moment: float) -> PlanarPose | None:
        """Return where the robot was; a frame that was on its way for long shows where it was then."""
        for place, at in reversed(self._places):
            if at <= moment:
                return place if moment - at <= PLACE_S else None
        return None

    def _on_camera_line(self, line: DiagnosticStatus) -> None:
        words = "" if line.level == DiagnosticStatus.OK else f"go2_camera: {line.message}"
        self._report = words, time.monotonic()

    def _on_odometry(self, odometry: Odometry) -> None:
        # action_executor reports what is wrong with odometry; here a wrong step is only not counted.
        before, place = self._place, self._odometry.take(sample_of(odometry))
        now = time.monotonic()
        self.fixed_frame = odometry.header.frame_id
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
