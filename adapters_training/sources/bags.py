"""Frames, instructions and answers of the robot, from the rosbag2 bags that the product records.

A decoded answer (spec_vlm_nav_interfaces/msg/DecodingStats) carries the stamp of the camera image that it is about; the
instruction is the newest on a topic `.../instruction`. The prompt is the one that was asked (`.../prompt`); where the
bag has none, or the target needs the guide, it is made anew and lists what was done so far, as the robot's do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adapters_training.sources import ASSISTANT, USER, Sample, Turn
from adapters_training.sources.rosbag2 import BagReader, unseen_videos
from speculation.images import COMPRESSED, RAW, to_jpeg
from speculation.language.prompts import NavigationAction, compose, parse_answer

ANSWER = "spec_vlm_nav_interfaces/msg/DecodingStats"
TEXT = "std_msgs/msg/String"


class RecordedBag:
    """The answered frames of a bag.

    `guide` explains the robot to a target that was not trained on its actions. What a bag that was cut off has lost is
    one of its `problems`. Raises ValueError, in a sentence, for what is no bag or is damaged within.
    """

    has_images = True

    def __init__(self, path: Path, guide: bool = False) -> None:
        self.path, self._guide, self.problems = path, guide, list[str]()
        self._samples: list[Sample] = []
        with BagReader(path) as bag:
            self.problems += bag.problems
            answers = self._read_answers(bag)
            self._read_frames(bag, answers)
            if answers:
                self.problems += unseen_videos(bag)
        for stamp in answers:
            self.problems.append(f"{path}: the answer about the frame of {stamp * 1e-9:.3f} s has no such frame")

    @property
    def blocks(self) -> list[int]:
        """The number of frames: they are one block."""
        return [len(self._samples)]

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return frame `index` with what was asked and answered about it."""
        return self._samples[index]

    def _read_answers(self, bag: BagReader) -> dict[int, tuple[str, str]]:
        """Return the answers by the stamp of their frame in ns; what has none or no instruction is a problem."""
        answers: dict[int, tuple[str, str]] = {}
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
            answers[_stamp(message)] = prompt, message.answer.strip()
            action = parse_answer(message.answer).action
            if action is not None:
                done.append(action)
        return answers

    def _read_prompts(self, bag: BagReader) -> dict[int, str]:
        """Return the prompts that were asked by the stamp of their frame in ns; what cannot be read is a problem."""
        prompts: dict[int, str] = {}
        for topic, message in _messages(bag, lambda topic, kind: _is_text(topic, kind, "prompt")):
            try:
                entry = json.loads(message.data)
                prompts[int(entry["stamp_ns"])] = str(entry["prompt"])
            except (ValueError, TypeError, KeyError) as error:
                self.problems.append(f"{self.path}: a prompt on {topic} is no JSON with stamp_ns and prompt: {error!r}")
        return prompts

    def _read_frames(self, bag: BagReader, answers: dict[int, tuple[str, str]]) -> None:
        """Move every answer that has a frame from `answers` to this source's records."""
        for topic, message in _messages(bag, lambda _, kind: kind in (COMPRESSED, RAW)):
            stamp = _stamp(message)
            if stamp not in answers:
                continue
            try:
                jpeg = to_jpeg(message, message.__msgtype__)
            except ValueError as error:
                self.problems.append(f"{self.path}: the frame of {stamp * 1e-9:.3f} s on {topic}: {error}")
                answers.pop(stamp)
                continue
            prompt, answer = answers.pop(stamp)
            where = f"{self.path}: answer {len(self._samples) + 1}"
            self._samples.append(Sample((Turn(USER, prompt), Turn(ASSISTANT, answer)), where, jpeg))


def _messages(bag: BagReader, wanted: Callable[[str, str], bool]) -> Iterator[tuple[str, Any]]:
    topics = [topic.name for topic in bag.topics.values() if wanted(topic.name, topic.kind)]
    for topic, _, message in bag.decoded(topics):
        yield topic, message


def _is_instruction(topic: str, kind: str) -> bool:
    return _is_text(topic, kind, "instruction")


def _is_text(topic: str, kind: str, name: str) -> bool:
    return kind == TEXT and topic.rpartition("/")[2] == name


def _stamp(message: Any) -> int:
    return int(message.header.stamp.sec) * 1_000_000_000 + int(message.header.stamp.nanosec)
