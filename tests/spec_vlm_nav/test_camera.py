"""The capture: newest frames at most so often, opened again on silence, and never in the way of a transition."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from queue import Empty, Queue

import numpy as np
import pytest

from spec_vlm_nav.camera import Capture, SourceSettings
from spec_vlm_nav.diagnostics import Level
from spec_vlm_nav.optics import Image

LIMIT_S = 20.0


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.info = partial(self._note, "info")
        self.warning = partial(self._note, "warning")
        self.error = partial(self._note, "error")

    def _note(self, level: str, message: str, **_: object) -> None:
        self.lines.append(f"{level}: {message}")


class Scripted:
    """A source whose frames a test gives by hand."""

    name, advice, waiting = "the test", "the test", "nothing was given"

    def __init__(self) -> None:
        self.frames: Queue[Image | Exception] = Queue()
        self.opened = self.closed = 0
        self.refuse = ""
        self._frame: Image | None = None

    def open(self) -> None:
        if self.refuse:
            raise OSError(self.refuse)
        self.opened += 1

    def grab(self) -> bool:
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
        self.closed += 1


class Rig:
    """A capture with a clock that the test moves."""

    def __init__(self, max_hz: float = 10.0, reconnect_s: float = 3.0) -> None:
        self.now = 100.0
        self.source, self.log = Scripted(), Log()
        self.published: list[tuple[int, float]] = []
        self.refuse = ""
        self.capture = Capture(self.source, max_hz, reconnect_s, self._publish, self.log, lambda: self.now)

    def _publish(self, image: Image, arrived: float) -> None:
        if self.refuse:
            raise ValueError(self.refuse)
        self.published.append((int(image[0, 0, 0]), arrived))

    def give(self, value: int) -> None:
        """Have a frame taken by the capture's thread."""
        self.source.frames.put(np.full((2, 2, 3), value, np.uint8))
        self.source.frames.put(ValueError("a mark: all before it is dealt with"))
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
    until(lambda: rig.source.opened == 1, "opened")
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
    assert rig.log.lines == [] and rig.source.opened == 1
    for attempt in range(2, 5):
        rig.now += 3.0
        rig.capture.tick(rig.now)
        until(lambda n=attempt: rig.source.opened == n, "opened again")  # type: ignore[misc]
    assert rig.capture.reconnects == 3
    (line,) = rig.log.lines
    assert line.startswith("warning: no frame from the test for 5.9 s (") and "Check the test" in line
    assert rig.capture.health(rig.now).level is Level.ERROR
    assert rig.source.closed == 3, "one is open at a time"
    rig.give(2)
    assert rig.log.lines[1:] == ["info: frames from the test again, after 11.9 s"]
    assert rig.capture.health(rig.now).level is Level.OK
    assert [value for value, _ in rig.published] == [1, 2]
    rig.capture.stop()


def test_a_source_that_cannot_be_opened_is_tried_again_and_says_why() -> None:
    rig = Rig()
    rig.source.refuse = "no such device"
    rig.capture.start(rig.now)
    until(lambda: "no such device" in rig.capture.health(rig.now).message, "reason")
    rig.source.refuse = ""
    rig.now += 3.1
    rig.capture.tick(rig.now)
    assert "no such device" in rig.log.lines[0]
    until(lambda: rig.source.opened == 1, "opened")
    rig.give(7)
    assert rig.published == [(7, rig.now)]
    rig.capture.stop()


def test_a_library_that_raises_its_own_errors_ends_in_a_reason_not_in_silence(rig: Rig) -> None:
    class Strange(Exception):
        pass

    rig.source.frames.put(Strange("codec on fire"))
    until(lambda: "codec on fire" in rig.capture.health(rig.now).message, "reason")
    until(lambda: rig.source.closed == 1, "closed")
    rig.now += 3.0
    rig.capture.tick(rig.now)
    until(lambda: rig.source.opened == 2, "opened again")
    rig.capture.stop()


def test_frames_that_cannot_be_published_are_no_health(rig: Rig) -> None:
    rig.refuse = "another aspect"
    for _ in range(5):
        rig.now += 1.0
        rig.source.frames.put(np.zeros((2, 2, 3), np.uint8))
        before = rig.errors
        until(lambda n=before: rig.errors > n, "refused")  # type: ignore[misc]
    health = rig.capture.health(rig.now)
    assert health.level is Level.ERROR and health.message == "no frames: another aspect", "the source is sound"
    rig.capture.tick(rig.now)
    assert "another aspect" in rig.log.lines[0] and "Check" not in rig.log.lines[0]
    rig.capture.stop()


@pytest.mark.parametrize("source", ["", "/dev/video0"])
def test_a_source_that_is_none_is_refused_with_those_that_are(source: str) -> None:
    with pytest.raises(ValueError, match="none of videohub, multicast, topic:NAME; of another camera take"):
        SourceSettings(source=source)
