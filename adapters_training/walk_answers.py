"""A target's own answers about recorded walks, as conversations that exits and fed heads are trained on.

A LeRobot data set has frames and tasks, but no words about them. Here the target answers greedily what it is asked
about evenly spaced frames; question, answer and picture go into a file of conversations (`sources.conversations`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from adapters_training.answers import answer_all
from adapters_training.devices import AUTO, resolved
from adapters_training.files import replacing
from adapters_training.sources import LeftOut
from adapters_training.sources.lerobot import LeRobotData
from adapters_training.sources.mixture import SHOWN_PROBLEMS
from speculation.language.instructions import sentence_for
from speculation.language.prompts import Vocabulary, compose, parse_answer
from speculation.progress import progress
from speculation.settings import add_flags, from_flags
from speculation.vlm.cache import KVCache
from speculation.vlm.inputs import prepare
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.settings import ModelSettings

CONVERSATIONS, IMAGES = "conversations.jsonl", "images"


class _Question(NamedTuple):
    name: str
    prompt: str
    jpeg: bytes


class _Answerer:
    """Answers side by side, in a cache that grows with the longest question."""

    def __init__(self, vlm: Vlm, rows: int, max_tokens: int) -> None:
        self._vlm, self._rows, self._max_tokens = vlm, rows, max_tokens
        self._cache: KVCache | None = None

    def __call__(self, questions: list[_Question]) -> list[str]:
        longest = max(len(prepare(self._vlm, each.prompt, each.jpeg).ids) for each in questions)
        if self._cache is None or self._cache.capacity < longest + self._max_tokens:
            self._cache = KVCache(self._vlm, self._rows, longest + self._max_tokens)
        return answer_all(self._vlm, self._cache, [(each.prompt, each.jpeg) for each in questions], self._max_tokens)


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


def _answered(path: Path) -> set[str]:
    """Return the pictures that a file has answers about; the line that a killed run left unfinished is cut off."""
    if not path.exists():
        return set()
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        with replacing(path) as file:
            file.write_bytes(b"".join(lines[:-1]))
        lines.pop()
    return {json.loads(line)["image"] for line in lines}


def add_command(commands: Any) -> None:
    """Register `walk-answers`."""
    line = commands.add_parser(
        "walk-answers",
        help="let a target answer the frames of a LeRobot v3 data set, for exits to learn from",
        description=__doc__,
        epilog="Example: python -m adapters_training walk-answers --model Qwen/Qwen2-VL-2B-Instruct --data walks "
        "--out out/walks; then 'exits --target Qwen/Qwen2-VL-2B-Instruct --data out/walks/conversations.jsonl'",
    )
    line.add_argument("--model", required=True, help="target model folder")
    line.add_argument("--data", required=True, help="folder of a LeRobot v3 data set")
    line.add_argument("--out", required=True, help="folder for conversations and pictures; the same command goes on")
    line.add_argument("--camera", default="", help="key of the camera, or its last part (default: the first)")
    line.add_argument("--frames", type=int, default=2000, help="about how many frames (default: %(default)s)")
    line.add_argument("--rows", type=int, default=8, help="answers decoded side by side (default: %(default)s)")
    line.add_argument("--max-tokens", type=int, default=128, help="of an answer (default: %(default)s)")
    add_flags(line, ModelSettings, defaults={"device": AUTO})
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Answer batch by batch; each is on disk at once. Raises ModelFolderError, ValueError or OSError, in a sentence."""
    for name in ("frames", "rows", "max_tokens"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; give at least 1")
    data, out = LeRobotData(Path(options.data), options.camera), Path(options.out)
    vlm = load_vlm(Path(options.model), resolved(from_flags(ModelSettings, options)))
    (out / IMAGES).mkdir(parents=True, exist_ok=True)
    path, problems, unread = out / CONVERSATIONS, list[str](), 0
    known = _answered(path)
    answer, batch = _Answerer(vlm, options.rows, options.max_tokens), list[_Question]()
    asked = questions(data, options.frames, known, Vocabulary.load(vlm.folder), problems)
    with progress(unit="frame", desc="walk-answers") as bar, path.open("a", encoding="utf-8") as file:
        for question in asked:
            batch.append(question)
            if len(batch) == options.rows:
                unread += _write(out, file, batch, answer(batch))
                bar.update(len(batch))
                batch = []
        if batch:
            unread += _write(out, file, batch, answer(batch))
            bar.update(len(batch))
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"left out: {problem}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        print(f"left out: {len(problems) - SHOWN_PROBLEMS} more", file=sys.stderr)
    count = len(_answered(path))
    print(f"{path}: {count:,} answers; {unread:,} named no action, {len(problems):,} frames or files were left out")
    if not count:
        raise ValueError(f"no frame of {options.data} was answered with an action, so there is nothing to train on")
    return 0


def _write(out: Path, file: Any, batch: list[_Question], answers: list[str]) -> int:
    """Write what names an action, the picture before the line that leads to it; return how many did not."""
    unread = 0
    for question, answer in zip(batch, answers, strict=True):
        if parse_answer(answer).action is None:
            unread += 1
            continue
        with replacing(out / question.name) as image:
            image.write_bytes(question.jpeg)
        turns = [{"from": "human", "value": question.prompt}, {"from": "gpt", "value": answer.strip()}]
        file.write(json.dumps({"image": question.name, "conversations": turns}, ensure_ascii=False) + "\n")
    file.flush()
    return unread
