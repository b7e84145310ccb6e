"""Whatever cv2.VideoCapture opens: a device number, a file, a URL."""

from __future__ import annotations

import time
from pathlib import Path

import cv2
import numpy as np

from spec_vlm_nav.optics import Image

OPEN_MS, READ_MS = 3000, 2000


class Device:
    """A device number, file or URL. Raises OSError for a device or file that does not exist."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.name = f"camera {source}"
        self.advice = "that the device, file or address is right and that no other program holds it (fuser -v)"
        path = Path(f"/dev/video{source}") if source.isdecimal() else Path(source)
        if "://" not in source and not path.exists():
            devices = ", ".join(sorted(each.name[5:] for each in Path("/dev").glob("video[0-9]*"))) or "none"
            raise OSError(
                f"source {source!r}: {path} does not exist; device numbers here: {devices}; otherwise use videohub, "
                "multicast, a file or a URL"
            )

    def open(self) -> _DeviceSource:
        if self._source.isdecimal():
            video = cv2.VideoCapture(int(self._source))
            video.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        elif "://" in self._source:
            limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_MS]
            video = cv2.VideoCapture(self._source, cv2.CAP_FFMPEG, limits)
        else:
            video = cv2.VideoCapture(self._source)
        if not video.isOpened():
            video.release()
            raise OSError(f"OpenCV cannot open {self._source}")
        return _DeviceSource(video, Path(self._source).is_file())


class _DeviceSource:
    """An open device or stream, or a file that plays at its own rate, over and over."""

    waiting = "the source gives no frame"

    def __init__(self, video: cv2.VideoCapture, file: bool) -> None:
        self._video, self._file = video, file
        self._period = 1.0 / (video.get(cv2.CAP_PROP_FPS) or 30.0) if file else 0.0
        self._next = time.monotonic()

    def grab(self) -> bool:
        if self._file:
            now = time.monotonic()
            self._next = max(self._next, now - self._period)
            time.sleep(max(0.0, self._next - now))
            self._next += self._period
        if self._video.grab():
            return True
        if self._file and self._video.set(cv2.CAP_PROP_POS_FRAMES, 0) and self._video.grab():
            return True
        raise OSError("the source gives no more frames")

    def retrieve(self) -> Image:
        done, image = self._video.retrieve()
        if not done:
            raise ValueError("a frame does not decode")
        return np.asarray(image, np.uint8)

    def close(self) -> None:
        self._video.release()
