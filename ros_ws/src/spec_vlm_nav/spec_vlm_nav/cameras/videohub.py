"""The Go2's front camera by calls: one request, one JPEG in the response. No ROS: see `send` and `answered`."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from spec_vlm_nav.camera import GRAB_S
from spec_vlm_nav.optics import Image
from spec_vlm_nav.robot import Topic
from speculation.frames import decode_jpeg

REQUESTS = Topic("/api/videohub/request", "unitree_api/msg/Request", "videohub_request_topic")
ANSWERS = Topic("/api/videohub/response", "unitree_api/msg/Response", "videohub_response_topic")
SERVICE = "videohub"
GET_IMAGE = 1001
"""GetImageSample. The sport service takes this id for Damp, which drops a standing robot: see `check_topic`."""

Send = Callable[[int], None]
"""Sends the call of an identity."""


class _Answer(NamedTuple):
    identity: int
    code: int
    jpeg: bytes


def check_topic(name: str) -> None:
    """Raise ValueError for a resolved name of the request topic that may be another service's."""
    if SERVICE not in name.split("/"):
        raise ValueError(
            f"camera calls would go to {name}, which is not the {SERVICE} service: other services take their id, "
            f"{GET_IMAGE}, for something else, the sport service for Damp, which drops the robot"
        )


def write(identity: int, message: Any) -> None:
    """Fill a `unitree_api/Request`."""
    message.header.identity.id = identity
    message.header.identity.api_id = GET_IMAGE


class Videohub:
    """One call is in flight; the service stalls under more."""

    name = "videohub"
    advice = (
        "that /api/videohub/response is published (ros2 topic info -v), that RMW and network interface are the "
        "robot's, and that nothing else calls videohub in a fast loop"
    )

    def __init__(self, send: Send, max_hz: float, timeout_s: float) -> None:
        self._send, self._period, self._timeout_s = send, 1.0 / max_hz, timeout_s
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._identity = 0
        self._in_flight = False
        self._sent_at = -float("inf")
        self._jpeg = b""
        self.waiting = "no call was sent yet"

    def open(self) -> None:
        """Forget the call that may be in flight."""
        self._in_flight = False

    def answered(self, identity: int, code: int, jpeg: bytes) -> None:
        """Take an answer, from any thread; one to another program's call, or to one given up, is passed over."""
        if identity == self._identity:
            self._answers.put(_Answer(identity, code, jpeg))

    def grab(self) -> bool:
        now = time.monotonic()
        if not self._in_flight:
            if now < self._sent_at + self._period:
                time.sleep(min(GRAB_S, self._sent_at + self._period - now))
                return False
            self._identity = max(self._identity + 1, time.monotonic_ns())
            self._in_flight, self._sent_at = True, now
            self._send(self._identity)
        left = self._sent_at + self._timeout_s - now
        try:
            answer = self._answers.get(timeout=max(0.0, min(GRAB_S, left)))
        except Empty:
            if left <= GRAB_S:
                self._in_flight = False
                self.waiting = f"a call was not answered within {self._timeout_s:g} s"
            return False
        if answer.identity != self._identity:
            return False
        self._in_flight = False
        if answer.code:
            raise ValueError(f"videohub refused with code {answer.code}")
        self._jpeg = answer.jpeg
        return True

    def retrieve(self) -> Image:
        return np.ascontiguousarray(decode_jpeg(self._jpeg)[..., ::-1])

    def close(self) -> None:
        """Let nothing go: `open` forgets a call in flight."""
