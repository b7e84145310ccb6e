"""Frames, instructions and answers of the robot, from the rosbag2 bags that the product records.

A decoded answer (spec_vlm_nav_interfaces/msg/DecodingStats) carries the stamp of the camera image that it is about; the
instruction is the newest on a topic `.../instruction`. The prompt is the one that was asked (`.../prompt`); where the
bag has none, or the target needs the guide, it is made anew and lists what was done so far, as the robot's do.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from adapters_training.sources import ASSISTANT, USER, Sample, Turn
from speculation.prompts import NavigationAction, compose, parse_answer

ANSWER = "spec_vlm_nav_interfaces/msg/DecodingStats"
TEXT = "std_msgs/msg/String"
COMPRESSED, RAW = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
COLOURS = {"rgb8": cv2.COLOR_RGB2BGR, "bgr8": None, "mono8": cv2.COLOR_GRAY2BGR}


@dataclass(frozen=True)
class _Answer:
    prompt: str
    text: str


class RecordedBag:
    """The answered frames of a bag. Their JPEGs wait in a temporary file, so a long bag fills no memory.

    `guide` explains the robot to a target that was not trained on its actions. Raises ValueError, in a sentence, for
    what is no bag, is damaged, or holds no answered frame.
    """

    has_images = True

    def __init__(self, path: Path, guide: bool = False) -> None:
        self.path, self.problems = path, list[str]()
        self._guide = guide
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the source
        self._places: list[tuple[int, int]] = []
        self._answers: list[_Answer] = []
        try:
            with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as bag:
                answers = self._read_answers(bag)
                self._read_frames(bag, answers)
        except Exception as error:  # the library raises whatever a damaged file makes its parser stumble over
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(f"bag {path} cannot be read: {reason}") from None
        self._spool.flush()
        for stamp in answers:
            self.problems.append(f"{path}: the answer about the frame of {stamp * 1e-9:.3f} s has no such frame")
        self.blocks = [len(self._places)]

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return frame `index` with what was asked and answered about it."""
        begin, length = self._places[index]
        answer = self._answers[index]
        # Not seek and read: processes that load data share one file position.
        jpeg = os.pread(self._spool.fileno(), length, begin)
        turns = (Turn(USER, answer.prompt), Turn(ASSISTANT, answer.text))
        return Sample(turns, f"{self.path}: answer {index + 1}", jpeg)

    def _read_answers(self, bag: Any) -> dict[int, _Answer]:
        """Return the answers by the stamp of their frame in ns; what has none or no instruction is a problem."""
        answers: dict[int, _Answer] = {}
        asked = {} if self._guide else self._read_prompts(bag)
        instruction, goal, done = "", -1, list[NavigationAction]()
        for topic, message in _messages(bag, lambda topic, kind: kind == ANSWER or _is_instruction(topic, kind)):
            if _is_instruction(topic, message.__msgtype__):
                instruction = str(message.data)
                continue
            where = f"{self.path}: answer {message.goal}/{message.step}"
            if not instruction:
                self.problems.append(f"{where}: no instruction had been given yet")
                continue
            if not message.answer.strip():
                self.problems.append(f"{where} is empty")
                continue
            if message.goal != goal:
                goal, done = message.goal, []
            prompt = asked.get(_stamp(message)) or compose(instruction, done, guide=self._guide)
            answers[_stamp(message)] = _Answer(prompt, message.answer.strip())
            action = parse_answer(message.answer).action
            if action is not None:
                done.append(action)
        return answers

    def _read_prompts(self, bag: Any) -> dict[int, str]:
        """Return the prompts that were asked by the stamp of their frame in ns; what cannot be read is a problem."""
        prompts: dict[int, str] = {}
        for topic, message in _messages(bag, lambda topic, kind: _is_text(topic, kind, "prompt")):
            try:
                entry = json.loads(message.data)
                prompts[int(entry["stamp_ns"])] = str(entry["prompt"])
            except (ValueError, TypeError, KeyError) as error:
                self.problems.append(f"{self.path}: a prompt on {topic} is no JSON with stamp_ns and prompt: {error!r}")
        return prompts

    def _read_frames(self, bag: Any, answers: dict[int, _Answer]) -> None:
        """Move every answer that has a frame from `answers` to this source's records."""
        for topic, message in _messages(bag, lambda _, kind: kind in (COMPRESSED, RAW)):
            stamp = _stamp(message)
            if stamp not in answers:
                continue
            jpeg = _to_jpeg(message)
            if jpeg is None:
                self.problems.append(f"{self.path}: the frame of {stamp * 1e-9:.3f} s on {topic} does not decode")
                answers.pop(stamp)
                continue
            self._places.append((self._spool.tell(), len(jpeg)))
            self._spool.write(jpeg)
            self._answers.append(answers.pop(stamp))


def _messages(bag: Any, wanted: Any) -> Iterator[tuple[str, Any]]:
    connections = [connection for connection in bag.connections if wanted(connection.topic, connection.msgtype)]
    if connections:
        for connection, _, raw in bag.messages(connections):
            yield connection.topic, bag.deserialize(raw, connection.msgtype)


def _is_instruction(topic: str, kind: str) -> bool:
    return _is_text(topic, kind, "instruction")


def _is_text(topic: str, kind: str, name: str) -> bool:
    return kind == TEXT and topic.rpartition("/")[2] == name


def _stamp(message: Any) -> int:
    return int(message.header.stamp.sec) * 1_000_000_000 + int(message.header.stamp.nanosec)


def _to_jpeg(message: Any) -> bytes | None:
    if message.__msgtype__ == COMPRESSED:
        data = np.asarray(message.data, np.uint8)
        if data[:2].tobytes() == b"\xff\xd8":
            return data.tobytes()
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    else:
        pixels = _pixels(message)
    return None if pixels is None else cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def _pixels(message: Any) -> Any:
    if message.encoding not in COLOURS or not message.step or len(message.data) < message.step * message.height:
        return None
    rows = np.asarray(message.data, np.uint8)[: message.step * message.height].reshape(message.height, message.step)
    channels = 1 if message.encoding == "mono8" else 3
    pixels = rows[:, : message.width * channels].reshape(message.height, message.width, channels)
    conversion = COLOURS[message.encoding]
    return np.ascontiguousarray(pixels) if conversion is None else cv2.cvtColor(pixels, conversion)
