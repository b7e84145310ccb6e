"""A recorded bag at its own pace: what is shown when. Time is given, never read. No ROS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from adapters_training.sources import LeftOut
from speculation.settings import CheckedSettings
from vlm_nav_evaluation.bags.datasets import open_dataset
from vlm_nav_evaluation.bags.files import BagReader, typestore
from vlm_nav_evaluation.bags.frames import Shown, camera_frames, find_camera

OPTION = "--camera-topic (camera_topic:= of a launch)"
GAP_S, SHORT_S = 300.0, 1.0
ODOMETRY = "nav_msgs/msg/Odometry"


@dataclass(frozen=True)
class Item:
    """Something that was recorded: when it was received (ns), and a camera frame as JPEG or odometry in CDR."""

    stamp_ns: int
    payload: bytes
    is_frame: bool
    frame_id: str = ""


class Pace(CheckedSettings, frozen=True):
    """How a bag is played. Raises ValueError, naming the setting, for a value out of range."""

    rate: Annotated[float, Meta(ge=0.01, le=100.0, description="how many times as fast as it was recorded")] = 1.0
    start: Annotated[float, Meta(ge=0.0, le=1e6, description="seconds that are left out at its start")] = 0.0
    laps: Annotated[int, Meta(ge=0, le=1_000_000, description="how often it is played; 0: for ever")] = 1


def items(
    path: Path, camera_topic: str = "", odom_topic: str = "", left_out: Callable[[LeftOut], None] = lambda _: None
) -> Iterator[Item]:
    """Yield the camera frames and the odometry of a recording in order of time.

    Without a name it is the one camera that is no depth, and the first odometry; data sets that are no bag have no
    odometry here. What cannot be read is handed to `left_out`, and the rest is good. Raises ValueError, in
    one sentence, for what is no recording and for one without such frames.
    """
    dataset = open_dataset(path, camera_topic)
    if dataset is None:
        yield from _bag_items(path, camera_topic, odom_topic, left_out)
        return
    for shot in dataset.shots():
        if isinstance(shot, LeftOut):
            left_out(shot)
            continue
        try:
            yield Item(shot.stamp_ns, shot.jpeg(), True)
        except ValueError as error:
            left_out(LeftOut(str(error), shot.index))


def _bag_items(path: Path, camera_topic: str, odom_topic: str, left_out: Callable[[LeftOut], None]) -> Iterator[Item]:
    types = typestore()
    with BagReader(path) as bag:
        camera, odometry = find_camera(bag, camera_topic, OPTION), bag.find((ODOMETRY,), odom_topic)
        for entry in camera_frames(bag, camera, [odometry.name] if odometry else []):
            if isinstance(entry, LeftOut):
                left_out(entry)
                continue
            try:
                if isinstance(entry, Shown):
                    taken = entry.take()
                    item = Item(entry.stamp_ns, taken.jpeg, True, taken.frame_id)
                else:
                    name, stamp_ns, raw = entry
                    item = Item(stamp_ns, bytes(types.serialize_cdr(bag.decode(name, raw), ODOMETRY)), False)
            except ValueError as error:
                left_out(LeftOut(str(error), entry.index if isinstance(entry, Shown) else None))
            else:
                yield item


def timed(
    lap: Callable[[], Iterable[Item]], pace: Pace, left_out: Callable[[LeftOut], None] = lambda _: None
) -> Iterator[tuple[float, Item]]:
    """Yield what is shown and when, in seconds from the start of playing; a lap follows the one before after a frame.

    `lap` reads the bag from its beginning. A gap of more than `GAP_S` lasts `SHORT_S`, which `left_out` is told: a
    computer without a battery for its clock begins in 1970 and jumps. Raises ValueError, naming what to change, if
    nothing would be shown.
    """
    begun = 0.0
    lap_number = 0
    while pace.laps == 0 or lap_number < pace.laps:
        before: int | None = None
        elapsed = -pace.start
        due = gap = 0.0
        last_frame: float | None = None
        for item in lap():
            silent_s = 0.0 if before is None else (item.stamp_ns - before) * 1e-9
            before = item.stamp_ns
            if silent_s > GAP_S:
                left_out(
                    LeftOut(f"after {elapsed + pace.start:.1f} s nothing was recorded for {silent_s:.0f} s: left out")
                )
                silent_s = SHORT_S
            elapsed += silent_s
            if elapsed < -1e-9:
                continue
            due = elapsed / pace.rate
            if item.is_frame:
                gap = due - last_frame if last_frame is not None else gap
                last_frame = due
            yield begun + due, item
        if last_frame is None:
            raise ValueError(
                f"the bag has no readable camera frame after its first {pace.start:g} s; choose a smaller start"
            )
        begun += due + gap
        lap_number += 1
