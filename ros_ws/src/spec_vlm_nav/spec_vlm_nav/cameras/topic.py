"""Images that another node publishes, raw or compressed, in any encoding that is read. No ROS: see `received`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from spec_vlm_nav.camera import GRAB_S, TOPIC
from spec_vlm_nav.optics import Image
from speculation.images import COMPRESSED, RAW, to_pixels


class ImageTopic:
    """The newest message counts; it is converted only when its frame is used."""

    def __init__(self, source: str) -> None:
        self.topic = source.removeprefix(TOPIC).strip()
        if not self.topic.strip("/"):
            raise ValueError(f"source {source!r} names no topic; give for example {TOPIC}/front/image_raw")
        # image_transport names them so.
        self.kind = COMPRESSED if self.topic.endswith("/compressed") else RAW
        self.name = f"{TOPIC}{self.topic}"
        self.advice = f"that {self.topic} is published as {self.kind} (ros2 topic info -v {self.topic})"
        self.waiting = f"no image comes on {self.topic}"
        self._new = threading.Condition()
        self._newest: Any = None
        self._grabbed: Any = None

    def open(self) -> None:
        """Forget what came before."""
        with self._new:
            self._newest = None

    def received(self, message: Any) -> None:
        """Take a message, from any thread."""
        with self._new:
            self._newest = message
            self._new.notify()

    def grab(self) -> bool:
        with self._new:
            if self._newest is None:
                self._new.wait(GRAB_S)
            self._grabbed, self._newest = self._newest, None
        return self._grabbed is not None

    def retrieve(self) -> Image:
        return np.ascontiguousarray(to_pixels(self._grabbed, self.kind)[..., ::-1])

    def close(self) -> None:
        """Let nothing go: the node that subscribed ends the subscription."""
