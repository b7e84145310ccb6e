"""A target's own answers about recorded walks, as conversations that exits and fed heads are trained on.

A LeRobot data set has frames and tasks, but no words about them. Here the target answers greedily what it is asked
about evenly spaced frames; question, answer and picture go into a file of conversations (`sources.conversations`).

example; then exits --target Qwen/Qwen2-VL-2B-Instruct --data out/walks/conversations.jsonl:
  python -m adapters_training walk-answers --model Qwen/Qwen2-VL-2B-Instruct --data walks --out out/walks
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple, TextIO

from msgspec import Meta

from adapters_training.answers import answer_all
from adapters_training.command import Command
from adapters_training.devices import ModelConfig, resolved
from adapters_training.files import replacing, whole_lines
from adapters_training.sources import LeftOut
from adapters_training.sources.conversations import json_line
from adapters_training.sources.lerobot import LeRobotData
from adapters_training.sources.mixture import report_left_out
from speculation.language.instructions import sentence_for
from speculation.language.prompts import Vocabulary, compose, parse_answer
from speculation.progress import progress
from speculation.vlm.cache import KVCache
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm

CONVERSATIONS, IMAGES = "conversations.jsonl", "images"


class _Question(NamedTuple):
    name: str
    prompt: str
    jpeg: bytes


def questions(
    data: LeRobotData, count: int, known: set[str], vocabulary: Vocabulary | None, problems: list[str]
) -> Iterator[_Question]:
    """Yield about `count` evenly spaced frames with what is asked about them, without those named in `known`."""
    stride = max(1, data.count // count)
    for item in data.shots():
        if isinstance(item, LeftOut):
            problems.append(item.reason)
        elif item.index % stride == 0 and (name := f"{IMAGES}/frame-{item.index:06d}.jpg") not in known:
            try:
                sentence = sentence_for(item.instruction, vocabulary)
                yield _Question(name, compose(sentence, guide=vocabulary is None), item.jpeg())
            except ValueError as error:
                problems.append(f"frame {item.index}: {error}")


def _pictures(path: Path) -> set[str]:
    """Return the pictures that a file has answers about."""
    return {json.loads(line)["image"] for line in whole_lines(path)}


class WalkConfig(ModelConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the command that answers frames of walks."""

    model: Annotated[Path, Meta(description="target model folder")]
    data: Annotated[Path, Meta(description="folder of a LeRobot v3 data set")]
    out: Annotated[Path, Meta(description="folder for conversations and pictures; the same command goes on")]
    camera: Annotated[str, Meta(description="key of the camera, or its last part; none: the first")] = ""
    frames: Annotated[int, Meta(ge=1, description="about how many frames")] = 2000
    rows: Annotated[int, Meta(ge=1, description="answers decoded side by side")] = 8
    max_tokens: Annotated[int, Meta(ge=1, description="of an answer")] = 128


def _run(config: WalkConfig, _: argparse.Namespace) -> int:
    """Answer batch by batch; each is on disk at once. Raises ModelFolderError, ValueError or OSError, in a sentence."""
    data, out = LeRobotData(config.data, config.camera), config.out
    vlm = load_vlm(config.model, resolved(config))
    (out / IMAGES).mkdir(parents=True, exist_ok=True)
    path, problems = out / CONVERSATIONS, list[str]()
    asked = questions(data, config.frames, _pictures(path), Vocabulary.load(vlm.folder), problems)
    cache, unread = KVCache(vlm, 1, 1), 0
    with progress(unit="frame", desc="walk-answers") as bar, path.open("a", encoding="utf-8") as file:
        while batch := list(islice(asked, config.rows)):
            needed = max(len(prepare(vlm, each.prompt, each.jpeg).ids) for each in batch) + config.max_tokens
            if cache.capacity < needed:
                cache = KVCache(vlm, config.rows, needed)
            given = answer_all(vlm, cache, [(each.prompt, each.jpeg) for each in batch], config.max_tokens)
            unread += _write(out, file, batch, given)
            bar.update(len(batch))
    report_left_out(problems)
    count = len(_pictures(path))
    print(f"{path}: {count:,} answers; {unread:,} named no action, {len(problems):,} frames or files were left out")
    if not count:
        raise ValueError(f"no frame of {config.data} was answered with an action, so there is nothing to train on")
    return 0


def _write(out: Path, file: TextIO, batch: list[_Question], answers: list[str]) -> int:
    """Write what names an action, the picture before the line that leads to it; return how many did not."""
    unread = 0
    for question, answer in zip(batch, answers, strict=True):
        if parse_answer(answer).action is None:
            unread += 1
            continue
        with replacing(out / question.name) as image:
            image.write_bytes(question.jpeg)
        file.write(json_line(question.prompt, answer.strip(), image=question.name))
    file.flush()
    return unread


COMMAND = Command(
    "walk-answers", "let a target answer the frames of a LeRobot v3 data set, for exits to learn from", __doc__,
    WalkConfig, _run,
)  # fmt: skip
