"""A camera as the robot's node needs it: what a source is, its settings, and the thread that reads it. No ROS."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from spec_vlm_nav.diagnostics import Arrivals, Level, Log, Status
from spec_vlm_nav.optics import Image, LensSettings, ViewSettings
from spec_vlm_nav.parameters import Parameters
from speculation.settings import CheckedSettings, check

GRAB_S = 0.5
"""A source waits no longer for a frame: so long the end of its thread may take."""
TOPIC = "topic:"
"""What a source begins with that is a topic's name."""


class SourceSettings(msgspec.Struct, frozen=True):
    """Where frames come from."""

    source: Annotated[
        str,
        Meta(
            description="videohub: JPEG calls over ROS; multicast: the Go2's H.264 stream; topic:NAME: images that "
            "another node publishes, raw or (NAME ends in /compressed) compressed"
        ),
    ] = "videohub"
    interface: Annotated[
        str,
        Meta(description="network interface of the multicast stream, e.g. eth0; without the right one no frame comes"),
    ] = ""
    group: Annotated[str, Meta(description="address of the multicast stream")] = "230.1.1.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="UDP port of the multicast stream")] = 1720
    videohub_timeout_s: Annotated[
        float, Meta(ge=0.1, le=10.0, description="wait for the answer to a videohub call, s; one call is in flight")
    ] = 1.0

    def __post_init__(self) -> None:
        check(self)
        if self.source not in ("videohub", "multicast") and not self.source.startswith(TOPIC):
            raise ValueError(
                f"source {self.source!r} is none of videohub, multicast, topic:NAME; of another camera take the topic "
                "that its driver publishes"
            )


class CameraSettings(CheckedSettings, frozen=True):
    """What go2_camera depends on."""

    source: SourceSettings = SourceSettings()
    lens: LensSettings = LensSettings()
    view: ViewSettings = ViewSettings()
    max_hz: Annotated[float, Meta(ge=0.5, le=60.0, description="most frames a second; others are dropped")] = 10.0
    latency_s: Annotated[
        float, Meta(ge=0.0, le=2.0, description="from light to arrival, s; stamps are that much before the arrival")
    ] = 0.0
    jpeg_quality: Annotated[int, Meta(ge=1, le=100, description="of the published images; 90 is what models saw")] = 90
    reconnect_s: Annotated[
        float, Meta(ge=0.5, le=60.0, description="silence after which the source is opened again, s")
    ] = 3.0


class MountSettings(msgspec.Struct, frozen=True):
    """Where the camera sits on the robot. The default is from the Go2's URDF; the simulated Go2 has it too."""

    base_frame: Annotated[str, Meta(description="frame that the camera is mounted on")] = "base_link"
    link_frame: Annotated[str, Meta(description="frame of the camera, x forward")] = "front_camera_link"
    frame_id: Annotated[str, Meta(description="frame of the images, z forward")] = "front_camera_optical_frame"
    mount_x: Annotated[float, Meta(ge=-5.0, le=5.0, description="camera ahead of the base, m")] = 0.327
    mount_y: Annotated[float, Meta(ge=-5.0, le=5.0, description="camera left of the base, m")] = 0.0
    mount_z: Annotated[float, Meta(ge=-5.0, le=5.0, description="camera above the base, m")] = 0.043
    mount_roll: Annotated[float, Meta(ge=-math.pi, le=math.pi, description="camera's roll, rad")] = 0.0
    mount_pitch: Annotated[
        float, Meta(ge=-math.pi, le=math.pi, description="camera's pitch, rad; down is positive")
    ] = 0.0
    mount_yaw: Annotated[float, Meta(ge=-math.pi, le=math.pi, description="camera's yaw, rad; left is positive")] = 0.0

    def __post_init__(self) -> None:
        check(self)
        frames = (self.base_frame, self.link_frame, self.frame_id)
        if not all(frames) or len(set(frames)) < len(frames):
            raise ValueError(f"base_frame, link_frame and frame_id must differ and not be empty: {', '.join(frames)}")


CAMERA = Parameters(CameraSettings)
MOUNT = Parameters(MountSettings)

Quaternion = tuple[float, float, float, float]
"""x, y, z, w."""
OPTICAL: Quaternion = (-0.5, 0.5, -0.5, 0.5)
"""It turns a frame with x forward into its optical frame: z forward, x right, y down (REP 103)."""


def quaternion(roll: float, pitch: float, yaw: float) -> Quaternion:
    """Return the rotation about fixed axes, x first, as URDF has it. Angles in radians."""
    (sr, cr), (sp, cp), (sy, cy) = ((math.sin(angle / 2), math.cos(angle / 2)) for angle in (roll, pitch, yaw))
    return (
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    )


class Source(Protocol):
    """A camera, checked, that can be opened again and again. While it is open one thread uses it."""

    name: str
    """Names it in logs, e.g. multicast 230.1.1.1:1720 on eth0."""
    advice: str
    """Says what to check when no frames come."""
    waiting: str
    """Says what it waits for while no frame comes."""

    def open(self) -> None:
        """Open it. Raises OSError or RuntimeError where that fails."""

    def grab(self) -> bool:
        """Wait for the next frame, at most about `GRAB_S`; False: none came.

        Raises ValueError for a frame that cannot be decoded, OSError or RuntimeError where no more can come.
        """

    def retrieve(self) -> Image:
        """Return the frame that was grabbed last. Raises ValueError where it cannot be decoded."""

    def close(self) -> None:
        """Let go of the device."""


class _Reader:
    """One thread that opens the source, and alone touches it until it is closed."""

    def __init__(self, source: Source, deliver: Callable[[_Reader], None]) -> None:
        self.ended = threading.Event()
        self.problem = ""
        self.errors = 0
        self._source, self._is_open = source, False
        self.thread = threading.Thread(target=self._run, args=(deliver,), name="camera", daemon=True)
        self.thread.start()

    @property
    def why(self) -> str:
        """Why no frames come, as far as this thread knows."""
        return self.problem or (self._source.waiting if self._is_open else "it is being opened")

    def _run(self, deliver: Callable[[_Reader], None]) -> None:
        source = self._source
        try:
            source.open()
            self._is_open = True
            try:
                while not self.ended.is_set():
                    try:
                        if source.grab() and not self.ended.is_set():
                            deliver(self)
                    except ValueError as error:
                        self.errors += 1
                        self.problem = str(error)
            finally:
                source.close()
        except Exception as error:
            # Decoders raise their own, unrelated types; a thread that only ended would be silent.
            self.problem = str(error) or type(error).__name__


class Capture:
    """Reads a source in a thread of its own, hands on its newest frames, and opens it again on silence.

    Frames that come faster than `max_hz` are dropped. `publish` is called with a frame and the time of its arrival,
    from that thread; ValueError from it counts as a bad frame. Time is given: steady clock, seconds.
    """

    def __init__(
        self,
        source: Source,
        max_hz: float,
        reconnect_s: float,
        publish: Callable[[Image, float], None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._publish, self._log, self._clock = source, publish, log, clock
        self._period, self._silence_s = 1.0 / max_hz, max(reconnect_s, 2.0 / max_hz)
        self._lock = threading.RLock()
        """Never held while a source or `publish` runs."""
        self._reader: _Reader | None = None
        self._wanted = False
        """Whether frames are to come: between `start` and `stop`."""
        self._arrivals, self._published = Arrivals(), Arrivals()
        self._since = self._due = -math.inf
        self._lost_at: float | None = None
        self._errors = 0
        self.reconnects = 0

    def start(self, now: float) -> None:
        """Open the source, in the background."""
        self.stop()
        with self._lock:
            self._lost_at, self._wanted = None, True
            self._open(now)

    def stop(self) -> None:
        """Hand on no more frames and close the source, which takes about `GRAB_S` at most. Safe to repeat."""
        with self._lock:
            self._wanted = False
        self._close()

    def tick(self, now: float) -> None:
        """Open the source again where it has been silent for too long. Call it a few times a second."""
        with self._lock:
            if self._reader is None or now - self._since < self._silence_s:
                return
            if self._lost_at is None:
                self._lost_at = self._since
                self._log.warning(
                    f"no frame from {self._source.name} for {now - self._since:.1f} s ({self._reader.why}); it is "
                    f"opened again every {self._silence_s:g} s{self._advice(now)}"
                )
        self._close()
        with self._lock:
            if self._wanted and self._reader is None:
                self.reconnects += 1
                self._open(now)

    def health(self, now: float) -> Status:
        """Return the line for `/diagnostics`."""
        with self._lock:
            age = self._published.age(now)
            values: dict[str, str | float | int] = {
                "source": self._source.name,
                "rate (1/s)": self._arrivals.rate(now),
                "published (1/s)": self._published.rate(now),
                "age (s)": "none" if age is None else age,
                "reconnects": self.reconnects,
                "decode errors": self._errors + (self._reader.errors if self._reader is not None else 0),
            }
            if age is not None and age < self._silence_s:
                return Status("camera", Level.OK, "frames arrive", values)
            why = "closed" if self._reader is None else self._reader.why
            return Status("camera", Level.ERROR, f"no frames: {why}{self._advice(now)}", values)

    def _advice(self, now: float) -> str:
        """Return what to check; nothing where frames do come, and only what is in them is wrong."""
        age = self._arrivals.age(now)
        return "" if age is not None and age < self._silence_s else f". Check {self._source.advice}"

    def _close(self) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.ended.set()
            reader.thread.join()
            self._errors += reader.errors

    def _open(self, now: float) -> None:
        self._since = now
        self._reader = _Reader(self._source, self._deliver)

    def _deliver(self, reader: _Reader) -> None:
        now = self._clock()
        with self._lock:
            if reader is not self._reader:
                return
            self._arrivals.note(now)
            if now < self._due:
                return
            self._due = max(self._due + self._period, now)
        self._publish(self._source.retrieve(), now)
        reader.problem = ""
        with self._lock:
            self._published.note(now)
            self._since, lost_at, self._lost_at = now, self._lost_at, None
        if lost_at is not None:
            self._log.info(f"frames from {self._source.name} again, after {now - lost_at:.1f} s")
