"""The capture: newest frames at most so often, opened again on silence, and never in the way of a transition."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import Empty, Queue

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav import camera
from spec_vlm_nav.camera import MAX_STUCK, CameraSettings, Capture, MountSettings, SourceSettings, quaternion
from spec_vlm_nav.diagnostics import Level
from spec_vlm_nav.optics import Image

LIMIT_S = 20.0


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, **options: object) -> None:
        self.lines.append(f"info: {message}")

    def warning(self, message: str, **options: object) -> None:
        self.lines.append(f"warning: {message}")

    def error(self, message: str, **options: object) -> None:
        self.lines.append(f"error: {message}")


class Scripted:
    """A source whose frames a test gives by hand; `hang` keeps its thread in `grab` as a driver's fault does."""

    waiting = "nothing was given"

    def __init__(self) -> None:
        self.frames: Queue[Image | Exception] = Queue()
        self.hang = threading.Event()
        self.release = threading.Event()
        self.closed = threading.Event()
        self._frame: Image | None = None

    def grab(self) -> bool:
        if self.hang.is_set():
            self.release.wait(LIMIT_S)
            return False
        try:
            given = self.frames.get(timeout=0.01)
        except Empty:
            return False
        if isinstance(given, Exception):
            raise given
        self._frame = given
        return True

    def retrieve(self) -> Image:
        assert self._frame is not None
        return self._frame

    def close(self) -> None:
        self.closed.set()


class Opener:
    name, advice = "the test", "the test"

    def __init__(self) -> None:
        self.opened: list[Scripted] = []
        self.refuse = ""
        self.hang = False

    def open(self) -> Scripted:
        if self.refuse:
            raise OSError(self.refuse)
        source = Scripted()
        if self.hang:
            source.hang.set()
        self.opened.append(source)
        return source


class Rig:
    """A capture with a clock that the test moves."""

    def __init__(self, max_hz: float = 10.0, reconnect_s: float = 3.0) -> None:
        self.now = 100.0
        self.opener, self.log = Opener(), Log()
        self.published: list[tuple[int, float]] = []
        self.refuse = ""
        self.capture = Capture(self.opener, max_hz, reconnect_s, self._publish, self.log, lambda: self.now)

    def _publish(self, image: Image, arrived: float) -> None:
        if self.refuse:
            raise ValueError(self.refuse)
        self.published.append((int(image[0, 0, 0]), arrived))

    def give(self, value: int) -> None:
        """Have a frame taken by the capture's thread."""
        source = self.opener.opened[-1]
        source.frames.put(np.full((2, 2, 3), value, np.uint8))
        source.frames.put(ValueError("a mark: all before it is dealt with"))
        before = self.errors
        until(lambda: self.errors > before, "frame taken")

    @property
    def errors(self) -> int:
        return int(self.capture.health(self.now).values["decode errors"])


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.capture.start(rig.now)
    until(lambda: len(rig.opener.opened) == 1, "opened")
    return rig


def test_frames_faster_than_max_hz_are_dropped_and_never_queued(rig: Rig) -> None:
    rig.give(1)
    rig.give(2)
    for value in range(3, 23):
        rig.now += 1 / 15
        rig.give(value)
    times = [at for _, at in rig.published]
    # Ten a second of the 20/15 s, and two at the start.
    assert 13 <= len(times) <= 15
    values = [value for value, _ in rig.published]
    assert values == sorted(values) and values[-1] >= 21
    rig.capture.stop()


def test_a_source_that_stops_is_opened_again_with_one_line_and_comes_back(rig: Rig) -> None:
    rig.give(1)
    rig.now += 2.9
    rig.capture.tick(rig.now)
    assert rig.log.lines == [] and len(rig.opener.opened) == 1
    for attempt in range(2, 5):
        rig.now += 3.0
        rig.capture.tick(rig.now)
        until(lambda n=attempt: len(rig.opener.opened) == n, "opened again")  # type: ignore[misc]
    assert rig.capture.reconnects == 3
    (line,) = rig.log.lines
    assert line.startswith("warning: no frame from the test for 5.9 s (") and "Check the test" in line
    assert rig.capture.health(rig.now).level is Level.ERROR
    until(lambda: all(source.closed.is_set() for source in rig.opener.opened[:-1]), "old ones closed")
    rig.give(2)
    assert rig.log.lines[1:] == ["info: frames from the test again, after 11.9 s"]
    assert rig.capture.health(rig.now).level is Level.OK
    assert [value for value, _ in rig.published] == [1, 2]
    rig.capture.stop()


def test_a_source_that_cannot_be_opened_is_tried_again_and_says_why() -> None:
    rig = Rig()
    rig.opener.refuse = "no such device"
    rig.capture.start(rig.now)
    until(lambda: "no such device" in rig.capture.health(rig.now).message, "reason")
    rig.opener.refuse = ""
    rig.now += 3.1
    rig.capture.tick(rig.now)
    assert "no such device" in rig.log.lines[0]
    until(lambda: len(rig.opener.opened) == 1, "opened")
    rig.give(7)
    assert rig.published == [(7, rig.now)]
    rig.capture.stop()


def test_a_library_that_raises_its_own_errors_ends_in_a_reason_not_in_silence(rig: Rig) -> None:
    class Strange(Exception):
        pass

    rig.opener.opened[0].frames.put(Strange("codec on fire"))
    until(lambda: "codec on fire" in rig.capture.health(rig.now).message, "reason")
    assert rig.opener.opened[0].closed.wait(LIMIT_S)
    rig.now += 3.0
    rig.capture.tick(rig.now)
    until(lambda: len(rig.opener.opened) == 2, "opened again")
    rig.capture.stop()


def test_frames_that_cannot_be_published_are_no_health(rig: Rig) -> None:
    rig.refuse = "another aspect"
    for _ in range(5):
        rig.now += 1.0
        rig.opener.opened[0].frames.put(np.zeros((2, 2, 3), np.uint8))
        before = rig.errors
        until(lambda n=before: rig.errors > n, "refused")  # type: ignore[misc]
    health = rig.capture.health(rig.now)
    assert health.level is Level.ERROR and health.message == "no frames: another aspect", "the source is sound"
    rig.capture.tick(rig.now)
    assert "another aspect" in rig.log.lines[0] and "Check" not in rig.log.lines[0]
    rig.capture.stop()


def test_nothing_is_published_after_stop_and_the_source_is_closed(rig: Rig) -> None:
    rig.give(1)
    source = rig.opener.opened[0]
    rig.capture.stop()
    source.frames.put(np.full((2, 2, 3), 2, np.uint8))
    assert rig.capture.join(LIMIT_S) and source.closed.is_set()
    rig.now += 10.0
    rig.capture.tick(rig.now)
    assert rig.published == [(1, 100.0)] and len(rig.opener.opened) == 1 and not rig.log.lines


def test_a_source_that_hangs_holds_up_nobody_and_is_left_behind() -> None:
    rig = Rig()
    rig.opener.hang = True
    rig.capture.start(rig.now)
    until(lambda: len(rig.opener.opened) == 1, "opened")
    rig.capture.stop()
    rig.capture.start(rig.now)
    rig.capture.stop()
    assert not rig.capture.join(0.01), "who had waited for the thread would find it ended"
    for source in rig.opener.opened:
        source.release.set()


def test_threads_that_hang_do_not_become_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera, "HANDOVER_S", 0.01)
    rig = Rig()
    rig.opener.hang = True
    rig.capture.start(rig.now)
    for attempt in range(1, 10):
        until(lambda n=attempt: len(rig.opener.opened) == min(n, MAX_STUCK + 1), "opened")  # type: ignore[misc]
        rig.now += 3.0
        rig.capture.tick(rig.now)
    assert rig.capture.reconnects == MAX_STUCK and len(rig.opener.opened) == MAX_STUCK + 1
    assert "threads wait in the source" in rig.capture.health(rig.now).message
    for source in rig.opener.opened:
        source.hang.clear()
        source.release.set()
    until(lambda: all(source.closed.is_set() for source in rig.opener.opened[:-1]), "closed")
    rig.give(3)
    assert rig.published == [(3, rig.now)]
    rig.capture.stop()


ANGLES = st.floats(-math.pi, math.pi)


@given(ANGLES, ANGLES, ANGLES)
def test_mounts_turn_as_urdf_does(roll: float, pitch: float, yaw: float) -> None:
    x, y, z, w = quaternion(roll, pitch, yaw)
    assert math.hypot(x, y, z, w) == pytest.approx(1.0)
    about = [cv2.Rodrigues(np.array(axis) * angle)[0] for axis, angle in (
        ((1.0, 0, 0), roll), ((0, 1.0, 0), pitch), ((0, 0, 1.0), yaw))]  # fmt: skip
    assert rotation(x, y, z, w) == pytest.approx(about[2] @ about[1] @ about[0], abs=1e-9)


def rotation(x: float, y: float, z: float, w: float) -> np.ndarray:
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def test_settings_refuse_what_cannot_work() -> None:
    with pytest.raises(ValueError, match="max_hz 0.0 is outside 0.5 to 60"):
        CameraSettings(max_hz=0.0)
    with pytest.raises(ValueError, match="source is empty"):
        SourceSettings(source=" ")
    with pytest.raises(ValueError, match="must differ"):
        MountSettings(link_frame="base_link")


def test_images_are_compressed_as_those_that_models_were_trained_on() -> None:
    from vlm_nav_simulation.dataset import JPEG_QUALITY

    assert CameraSettings().jpeg_quality == JPEG_QUALITY
