"""Cameras for tests: a short film, and a sender of the Go2's kind of stream on the loopback interface."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

av = pytest.importorskip("av", reason="PyAV, of the extra 'camera', is not installed")

GROUP = "230.1.1.1"
WIDTH, HEIGHT, HZ = 640, 360, 15
KEY_FRAME_EVERY = 10
LEFT, RIGHT = 60, 200
"""Grey of the two halves of every frame."""


def free_port() -> int:
    """Return an even UDP port, as RTP has them, that nobody seems to use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1]) & ~1


def multicast_works() -> bool:
    """Return whether the loopback interface carries multicast here."""
    port = free_port()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        try:
            receiver.settimeout(2.0)
            receiver.bind((GROUP, port))
            own = socket.inet_aton("127.0.0.1")
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + own)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
            sender.sendto(b"probe", (GROUP, port))
            return receiver.recv(16) == b"probe"
        except OSError:
            return False


def frame(number: int) -> npt.NDArray[np.uint8]:
    """Return a BGR frame: a dark and a bright half, and a stripe at its top that moves with `number`."""
    image = np.full((HEIGHT, WIDTH, 3), LEFT, np.uint8)
    image[:, WIDTH // 2 :] = RIGHT
    at = 16 * (number % (WIDTH // 16))
    image[:32, at : at + 16] = 255
    return image


def assert_is_frame(image: Any) -> None:
    """Hold a received BGR image against what `frame` makes, with a codec's tolerance."""
    assert image.shape == (HEIGHT, WIDTH, 3) and image.dtype == np.uint8
    below = image[48:]
    assert abs(float(below[:, : WIDTH // 2 - 16].mean()) - LEFT) < 6
    assert abs(float(below[:, WIDTH // 2 + 16 :].mean()) - RIGHT) < 6


def _stream(container: Any) -> Any:
    options = {"preset": "ultrafast", "tune": "zerolatency", "g": str(KEY_FRAME_EVERY)}
    stream = container.add_stream("libx264", rate=HZ, options=options)
    stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    stream.codec_context.time_base = Fraction(1, HZ)
    return stream


def encoded(frames: int) -> Iterator[list[bytes]]:
    """Yield the H.264 units, without start codes, of each frame; every `KEY_FRAME_EVERY`th is a key frame."""
    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    codec.time_base = Fraction(1, HZ)
    codec.options = {"preset": "ultrafast", "tune": "zerolatency", "g": str(KEY_FRAME_EVERY)}
    for number in range(frames):
        for packet in codec.encode(av.VideoFrame.from_ndarray(frame(number), format="bgr24")):
            yield [unit for unit in re.split(b"\0\0\0?\1", bytes(packet)) if unit]


class Sender:
    """Sends frames as RTP multicast on loopback, 15 a second, until it is closed; `paused` keeps it silent.

    The first `skip` frames, and with them the key frame and the parameter sets at the start, are encoded but not sent.
    """

    def __init__(self, port: int, payload_type: int = 96, skip: int = 0) -> None:
        self.paused = threading.Event()
        self.sent = 0
        self._end = threading.Event()
        address = f"rtp://{GROUP}:{port}?localaddr=127.0.0.1&ttl=0&pkt_size=1200"
        self._container = av.open(address, "w", format="rtp", options={"payload_type": str(payload_type)})
        self._skip = skip
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._container.close()

    def _send(self) -> None:
        stream = _stream(self._container)
        number = 0
        while not self._end.wait(0 if number < self._skip else 1 / HZ):
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame(number), format="bgr24")):
                if number >= self._skip and not self.paused.is_set():
                    self._container.mux(packet)
                    self.sent += 1
            number += 1


def first(source: Any, limit: float = 30.0) -> Any:
    """Return the first frame of a source; frames that do not decode are passed over, as the capture does."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            if source.grab():
                return source.retrieve()
        except ValueError:
            continue
    pytest.fail(f"no frame within {limit:g} s: {source.waiting}")
