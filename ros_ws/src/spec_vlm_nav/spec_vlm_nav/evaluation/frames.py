"""Camera frames of a recorded bag as questions: a JPEG, what was asked, and what the oracle says where it said so.

Frames come one by one, in order of time; nothing but the instructions and labels of a bag is held in memory. What
cannot be used is passed on as a sentence, and the frames around it are still good.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from simulation.camera import Image
from simulation.dataset import encode_jpeg
from spec_vlm_nav.bag import BagReader, Topic
from speculation.prompts import NavigationAction, Vocabulary, instruction_problem, to_navigation_action
from speculation.vlm.processing import decode_jpeg
from speculation.wire import MAX_IMAGE_BYTES

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
TEXT = "std_msgs/msg/String"
INSTRUCTION = "instruction"
"""Last part of the name of the topic that says what the robot was told."""
ORACLE = "oracle_action"
"""Last part of the name of the topic that carries an `OracleLabel` per frame."""
ENCODINGS: dict[str, tuple[int, int | None]] = {
    "rgb8": (3, None),
    "bgr8": (3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, cv2.COLOR_BGRA2RGB),
    "mono8": (1, cv2.COLOR_GRAY2RGB),
    "8UC1": (1, cv2.COLOR_GRAY2RGB),
    "yuv422": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2RGB_YUY2),
}
"""Encodings of raw images: bytes per pixel, and how OpenCV makes RGB of them."""
JPEG_START = b"\xff\xd8"


@dataclass(frozen=True)
class OracleLabel:
    """What the oracle would do about the frame whose header is stamped `stamp_ns`, and which objects it shows."""

    stamp_ns: int
    action: NavigationAction
    reason: str = ""
    visible: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text of the topic's std_msgs/String."""
        return json.dumps(
            {
                "stamp_ns": self.stamp_ns,
                "action": self.action.text,
                "reason": self.reason,
                "visible": list(self.visible),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> OracleLabel:
        """Read the text of a label. Raises ValueError, naming the field, for anything else."""
        try:
            data = json.loads(text)
            stamp, words = data["stamp_ns"], data["action"]
            reason, visible = data.get("reason", ""), data.get("visible", [])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"an oracle label must be JSON with stamp_ns and action: {error!r}") from None
        action = to_navigation_action(words) if isinstance(words, str) else None
        if action is None or not isinstance(stamp, int):
            raise ValueError(f"an oracle label has stamp_ns {stamp!r} and action {words!r}: one of them is none")
        return cls(stamp, action, str(reason), tuple(str(name) for name in visible))


@dataclass(frozen=True)
class Selection:
    """Which frames of a bag are asked about what.

    topic: camera topic, empty for the bag's only one. skip: frames passed over at the start. fps: at most so many
    frames per second of the bag's time, 0 for all. limit: at most so many frames of a bag, 0 for all. instruction:
    said instead of what the bag says.
    """

    topic: str = ""
    skip: int = 0
    fps: float = 0.0
    limit: int = 0
    instruction: str = ""

    def __post_init__(self) -> None:
        for name in ("skip", "fps", "limit"):
            value = getattr(self, name)
            if not 0 <= value < 1e9:
                raise ValueError(f"--{name} {value}: give 0 or more")


@dataclass(frozen=True)
class BagFrame:
    """One question. `index` counts the camera's frames in the bag from 0; `stamp_ns` is when it was received."""

    index: int
    stamp_ns: int
    jpeg: bytes
    instruction: str
    label: OracleLabel | None = None


@dataclass(frozen=True)
class LeftOut:
    """Something that is not evaluated, and why; `index` names the frame where it is one."""

    reason: str
    index: int | None = None


class FrameSource:
    """The questions of one bag; may be iterated again and gives the same. A context manager.

    Raises ValueError, in one sentence, for a bag that cannot be read or has not the one camera topic.
    """

    def __init__(self, path: Path, selection: Selection, vocabulary: Vocabulary | None = None) -> None:
        self._bag = BagReader(path)
        self._selection, self._vocabulary = selection, vocabulary
        try:
            self.topic = _camera(self._bag, selection.topic)
        except ValueError:
            self._bag.__exit__()
            raise

    def __enter__(self) -> FrameSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._bag.__exit__()

    def __len__(self) -> int:
        """About how many frames come, for a progress bar."""
        selection = self._selection
        count = max(0, self.topic.count - selection.skip)
        if selection.fps:
            count = min(count, int(self._bag.seconds * selection.fps) + 1)
        return min(count, selection.limit) if selection.limit else count

    def __iter__(self) -> Iterator[BagFrame | LeftOut]:
        """Yield the frames in order of time; a damaged end, an undecodable image or a bad label is a `LeftOut`."""
        try:
            instructions = self._instructions()
            labels, problems = self._labels()
            yield from problems
            yield from self._frames(instructions, labels)
        except ValueError as error:
            yield LeftOut(f"{error}; what comes after is left out")

    def _frames(
        self, instructions: list[tuple[int, str]], labels: dict[int, OracleLabel]
    ) -> Iterator[BagFrame | LeftOut]:
        seen = said = 0
        instruction = self._selection.instruction
        for index, stamp_ns, raw in self._selected():
            seen += 1
            while said < len(instructions) and instructions[said][0] <= stamp_ns:
                instruction = instructions[said][1]
                said += 1
            problem = "no instruction had been given yet; say one with --instruction"
            if instruction:
                problem = instruction_problem(instruction, self._vocabulary)
            if problem:
                yield LeftOut(problem, index)
                continue
            try:
                message = self._bag.decode(self.topic.name, raw)
                jpeg = to_jpeg(message, self.topic.kind)
            except ValueError as error:
                yield LeftOut(str(error), index)
                continue
            stamp = message.header.stamp
            label = labels.get(int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec))
            yield BagFrame(index, stamp_ns, jpeg, instruction, label)
        if not seen and self.topic.count > self._selection.skip:
            yield LeftOut(f"bag {self._bag.path} lists {self.topic.count} frames on {self.topic.name} but holds none")

    def _selected(self) -> Iterator[tuple[int, int, bytes]]:
        selection, taken, first, last = self._selection, 0, 0, -1
        period_ns = round(1e9 / selection.fps) if selection.fps else 0
        for index, (_, stamp_ns, raw) in enumerate(self._bag.messages([self.topic.name])):
            if index < selection.skip:
                continue
            if period_ns:
                # One frame for each tick since the first, so that jitter does not add up; a tenth early is on time.
                first = first or stamp_ns
                tick = (stamp_ns - first + period_ns // 10) // period_ns
                if tick <= last:
                    continue
                last = tick
            yield index, stamp_ns, raw
            taken += 1
            if taken == selection.limit:
                return

    def _instructions(self) -> list[tuple[int, str]]:
        if self._selection.instruction:
            return []
        topics = self._named(INSTRUCTION)
        if len(topics) > 1:
            names = ", ".join(topic.name for topic in topics)
            raise ValueError(
                f"bag {self._bag.path} has several instruction topics ({names}); say one with --instruction"
            )
        return [(stamp, str(message.data)) for stamp, message in self._texts(topics)]

    def _labels(self) -> tuple[dict[int, OracleLabel], list[LeftOut]]:
        labels, problems = {}, []
        for _, message in self._texts(self._named(ORACLE)):
            try:
                label = OracleLabel.from_json(message.data)
            except ValueError as error:
                problems.append(LeftOut(str(error)))
            else:
                labels[label.stamp_ns] = label
        return labels, problems

    def _named(self, name: str) -> list[Topic]:
        topics = self._bag.topics.values()
        return [topic for topic in topics if topic.name.rpartition("/")[2] == name and topic.kind == TEXT]

    def _texts(self, topics: list[Topic]) -> Iterator[tuple[int, Any]]:
        if topics:
            for topic, stamp_ns, raw in self._bag.messages([entry.name for entry in topics]):
                yield stamp_ns, self._bag.decode(topic, raw)


def to_jpeg(message: Any, kind: str) -> bytes:
    """Return the JPEG of an image message, as a robot would send it up.

    A JPEG goes through as it is. Anything else is encoded like the simulated camera's frames: every mode and every
    model gets these same bytes, so nothing is compared across encodings. Raises ValueError for what is no image.
    """
    if kind == COMPRESSED:
        data = bytes(message.data)
        jpeg = data if data.startswith(JPEG_START) else encode_jpeg(_decompress(data, str(message.format)))
    else:
        jpeg = encode_jpeg(_pixels(message))
    if len(jpeg) > MAX_IMAGE_BYTES:
        raise ValueError(
            f"an image of {len(jpeg)} bytes is larger than the {MAX_IMAGE_BYTES} that one message may carry"
        )
    decode_jpeg(jpeg)
    return jpeg


def _decompress(data: bytes, declared: str) -> Image:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    if pixels is None:
        raise ValueError(f"an image of {len(data)} bytes, format {declared!r}, does not decode")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def _pixels(message: Any) -> Image:
    """Return the RGB pixels [H, W, 3] of a raw image; rows may be padded."""
    encoding, height, width, step = str(message.encoding), int(message.height), int(message.width), int(message.step)
    if encoding not in ENCODINGS:
        raise ValueError(f"a raw image's encoding is {encoding!r}; known are {', '.join(ENCODINGS)}")
    depth, conversion = ENCODINGS[encoding]
    if not (height > 0 and width > 0 and step >= width * depth and len(message.data) >= step * height):
        raise ValueError(
            f"a raw image says {width} x {height} pixels of {encoding} in rows of {step} bytes but holds "
            f"{len(message.data)} bytes"
        )
    rows = np.asarray(message.data[: step * height], np.uint8).reshape(height, step)
    pixels = np.ascontiguousarray(rows[:, : width * depth]).reshape(height, width, depth)
    return pixels if conversion is None else np.asarray(cv2.cvtColor(pixels, conversion), np.uint8)


def _camera(bag: BagReader, wanted: str) -> Topic:
    cameras = [topic for topic in bag.topics.values() if topic.kind in (RAW, COMPRESSED)]
    listed = ", ".join(f"{topic.name} ({topic.count} frames)" for topic in cameras)
    if wanted:
        topic = bag.topics.get(wanted) or bag.topics.get(f"/{wanted}")
        if topic is None or topic not in cameras:
            what = "has no topic" if topic is None else f"has no images ({topic.kind}) on"
            raise ValueError(f"bag {bag.path} {what} {wanted}; its camera topics are {listed or 'none'}")
        return topic
    if not cameras:
        others = ", ".join(sorted(f"{topic.name} ({topic.kind})" for topic in bag.topics.values())) or "none at all"
        raise ValueError(f"bag {bag.path} has no topic of type {RAW} or {COMPRESSED}; its topics are {others}")
    if len(cameras) > 1:
        raise ValueError(f"bag {bag.path} has several camera topics: {listed}; choose one with --topic")
    return cameras[0]
