"""H.264 and other video in bags as pictures: the Go2's front stream and Foxglove's CompressedVideo."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adapters_training.sources import LeftOut
from adapters_training.sources.rosbag2 import FOXGLOVE_VIDEO, GO2_VIDEO
from speculation.images import pixels_jpeg
from speculation.optional_packages import need

CODECS = {"h264": "h264", "h265": "hevc", "vp9": "vp9", "av1": "av1"}
"""What CompressedVideo calls a format, and FFmpeg its decoder."""
_GAP = "Frame num gap"
"""FFmpeg's debugging message where frames of an H.264 stream are missing; what it shows for them looks like a view."""
_GO2_FIELDS = ("video720p", "video360p", "video180p")


def check_video(path: Any, topic: str) -> None:
    """Raise ValueError, with what to install, where no video can be decoded."""
    try:
        need("camera", "av")
    except ImportError as error:
        raise ValueError(f"bag {path}: {topic} is a video stream: {error}") from None


class Picture(NamedTuple):
    """One picture of a stream, not converted yet: which message it came in (from 0), and the decoder's frame."""

    number: int
    frame: Any

    def jpeg(self) -> bytes:
        """Return it as a robot would send it up. Raises ValueError for a size that nothing on the way would take."""
        return pixels_jpeg(np.asarray(self.frame.to_ndarray(format="rgb24"), np.uint8))


class Video:
    """The decoder of one stream. It begins at a key frame, and after damage or a change of format at the next one."""

    def __init__(self) -> None:
        import av

        # FFmpeg's complaints about a stream that begins in its middle; what matters is raised.
        av.logging.set_level(None)
        self._av = av
        self._codec: Any = None
        self._form = ""
        self._sees = self._begun = False
        self._before_key = 0
        self._problem = ""

    def push(self, index: int, kind: str, message: Any) -> list[Picture | LeftOut]:
        """Take the next message of a type; return the pictures that it completes, and what shows none."""
        found, problem = list[Any](), "it comes after damage and before the next key frame"
        try:
            form, data = _data(kind, message)
            found = [*self._changed(form), *self._decode(index, data)]
        except ValueError as error:
            self._sees, problem = False, str(error)
        pictures: list[Picture | LeftOut] = [Picture(frame.pts, frame) for frame in found]
        if self._begun or self._sees:
            self._begun = True
            left_out = [] if self._sees else [LeftOut(f"video: {problem}", index)]
            return [*self._before(), *pictures, *left_out]
        self._before_key += 1
        self._problem = problem
        return []

    def end(self) -> list[Picture | LeftOut]:
        """Return the last pictures, once there are no more messages."""
        return [*(Picture(frame.pts, frame) for frame in self._flushed()), *self._before()]

    def _before(self) -> list[LeftOut]:
        count, self._before_key = self._before_key, 0
        if not count:
            return []
        if self._sees:
            return [
                LeftOut(f"the first {count} messages of the video come before its first key frame and show nothing")
            ]
        return [LeftOut(f"none of the {count} messages of the video decodes to a key frame: {self._problem}")]

    def _changed(self, form: str) -> list[Any]:
        """Begin anew where the format changes; return what the decoder still held."""
        if form == self._form:
            return []
        held = self._flushed()
        self._form, self._sees = form, False
        self._codec = self._av.CodecContext.create(form.partition(" ")[0], "r")
        # More threads hold frames back.
        self._codec.thread_count = 1
        self._codec.flags |= self._av.codec.context.Flags.low_delay
        return held

    def _decode(self, index: int, data: bytes) -> list[Any]:
        packet, log = self._av.Packet(data), self._av.logging
        packet.pts = index
        log.set_level(log.DEBUG)
        try:
            with log.Capture() as messages:
                frames = self._codec.decode(packet)
        except self._av.error.FFmpegError as error:
            self._sees = False
            raise ValueError(f"a message does not decode ({error.strerror})") from None
        finally:
            log.set_level(None)
        if any(_GAP in text for *_, text in messages):
            self._sees = False
        return self._good(frames)

    def _flushed(self) -> list[Any]:
        try:
            return self._good(self._codec.decode(None)) if self._codec is not None else []
        except self._av.error.FFmpegError:
            return []

    def _good(self, frames: list[Any]) -> list[Any]:
        """Return the frames from a key frame on that are not damaged."""
        found = []
        for frame in frames:
            self._sees = (self._sees or bool(frame.key_frame)) and not frame.is_corrupt
            if self._sees:
                found.append(frame)
        return found


def _data(kind: str, message: Any) -> tuple[str, bytes]:
    """Return the decoder, with the field where there are several, and the bytes. Raises ValueError for none."""
    if kind == GO2_VIDEO:
        for field in _GO2_FIELDS:
            data = bytes(getattr(message, field))
            if data:
                return f"h264 {field}", data
        raise ValueError("a message is empty")
    assert kind == FOXGLOVE_VIDEO, kind
    codec = CODECS.get(str(message.format).lower())
    if codec is None:
        raise ValueError(f"its format is {message.format!r}; known are {', '.join(CODECS)}")
    return codec, bytes(message.data)
