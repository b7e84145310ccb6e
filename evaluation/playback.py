"""A recorded bag at its own pace: what is shown when. Time is given, never read; knows no ROS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from evaluation.bag import read, typestore
from spec_vlm_nav.images import COMPRESSED, RAW, to_jpeg

ODOMETRY = "nav_msgs/msg/Odometry"


class Kind(Enum):
    """What is shown."""

    FRAME = "a camera frame as JPEG"
    ODOMETRY = "nav_msgs/Odometry in CDR"


@dataclass(frozen=True)
class Item:
    """Something that was recorded: when it was received (ns), what it is, and its bytes."""

    stamp_ns: int
    kind: Kind
    payload: bytes
    frame_id: str = ""


@dataclass(frozen=True)
class Pace:
    """How a bag is played. rate: times its own speed. start_s: left out at its start. laps: 0 is for ever."""

    rate: float = 1.0
    start_s: float = 0.0
    laps: int = 1

    def __post_init__(self) -> None:
        if not 0.01 <= self.rate <= 100.0:
            raise ValueError(f"rate {self.rate:g} is outside 0.01 to 100")
        if not (math.isfinite(self.start_s) and self.start_s >= 0.0):
            raise ValueError(f"start {self.start_s:g} s: give 0 or more")
        if self.laps < 0:
            raise ValueError(f"laps {self.laps}: give 0 (for ever) or more")


def items(bag: Path, camera_topic: str = "", odom_topic: str = "") -> Iterator[Item]:
    """Yield the camera frames and the odometry of a bag in order of time; without a name the first topic of each kind.

    Raises ValueError, in one sentence, for what is no bag, for one without such frames (at its end), and for an image
    that cannot be read.
    """
    types = typestore()
    chosen = {"camera": camera_topic, "odometry": odom_topic}
    cameras: dict[str, bool] = {}
    for topic, stamp_ns, message in read(bag, (RAW, COMPRESSED, ODOMETRY)):
        kind = str(message.__msgtype__)
        if kind in (RAW, COMPRESSED):
            cameras[topic] = _is_chosen(chosen, "camera", topic)
            if cameras[topic]:
                yield Item(stamp_ns, Kind.FRAME, to_jpeg(message, kind), str(message.header.frame_id))
        elif kind == ODOMETRY and _is_chosen(chosen, "odometry", topic):
            yield Item(stamp_ns, Kind.ODOMETRY, bytes(types.serialize_cdr(message, ODOMETRY)))
    if not any(cameras.values()):
        where = f"images on {camera_topic}" if camera_topic else f"topic of type {RAW} or {COMPRESSED}"
        raise ValueError(f"bag {bag} has no {where}; its camera topics are {', '.join(cameras) or 'none'}")


def timed(lap: Callable[[], Iterable[Item]], pace: Pace) -> Iterator[tuple[float, Item]]:
    """Yield what is shown and when, in seconds from the start of playing; a lap follows the one before after a frame.

    `lap` reads the bag from its beginning. Raises ValueError, naming what to change, if nothing would be shown.
    """
    begun = 0.0
    lap_number = 0
    while pace.laps == 0 or lap_number < pace.laps:
        first: int | None = None
        due, gap, frames = 0.0, 0.0, 0
        last_frame = None
        for item in lap():
            first = item.stamp_ns if first is None else first
            since_s = (item.stamp_ns - first) * 1e-9 - pace.start_s
            if since_s < 0.0:
                continue
            due = since_s / pace.rate
            if item.kind is Kind.FRAME:
                gap = due - last_frame if last_frame is not None else gap
                last_frame, frames = due, frames + 1
            yield begun + due, item
        if not frames:
            raise ValueError(f"the bag has no camera frame after its first {pace.start_s:g} s; choose a smaller start")
        begun += due + gap
        lap_number += 1


def _is_chosen(chosen: dict[str, str], what: str, topic: str) -> bool:
    chosen[what] = chosen[what] or topic
    return chosen[what].lstrip("/") == topic.lstrip("/")
