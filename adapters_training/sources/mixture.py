"""Files and folders of any known kind as one data set, in an order that only seed and epoch decide."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adapters_training.records import WINDOW, Frame
from adapters_training.sources import Sample, Source
from adapters_training.sources.bags import RecordedBag
from adapters_training.sources.conversations import ConversationFile
from adapters_training.sources.lerobot import is_lerobot
from adapters_training.sources.rosbag2 import is_bag
from adapters_training.sources.shards import ShardFolder
from adapters_training.wording import form_of
from speculation.language.prompts import PROMPT_FORMS, VOCABULARY_FILE

SHOWN_PROBLEMS = 5
_KINDS = "a .json or .jsonl file of conversations, a folder of simulator shards, or a rosbag2 bag"


class Mixture:
    """The records of several sources, numbered one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        counts = [sum(source.blocks) for source in self.sources]
        self._ends = list(accumulate(counts))
        self._blocks = [0, *accumulate(length for source in self.sources for length in source.blocks if length)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def has_images(self) -> bool:
        """Whether any record has an image."""
        return any(source.has_images for source in self.sources)

    @property
    def problems(self) -> list[str]:
        """Why records were left out, a sentence each."""
        return [problem for source in self.sources for problem in source.problems]

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return record `index`. Raises BadRecord for one that cannot be read after all."""
        source, number = self.place(index)
        return source.sample(number, rng)

    def frame(self, index: int) -> Frame:
        """Return the simulator's frame that record `index` is, labels included. Raises ValueError for other records."""
        source, number = self.place(index)
        if not isinstance(source, ShardFolder):
            raise ValueError("packed questions are about folders of simulator shards only, of 'data' or 'answers'")
        return source.frame(number)

    def place(self, index: int) -> tuple[Source, int]:
        """Return the source of record `index`, and its number there."""
        which = int(np.searchsorted(self._ends, index, side="right"))
        return self.sources[which], index - (self._ends[which - 1] if which else 0)

    def order(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the numbers of all records as an epoch takes them: blocks shuffled, then a few blocks together."""
        rng = np.random.default_rng([seed, epoch])
        blocks = list(pairwise(self._blocks))
        shuffled = [blocks[index] for index in rng.permutation(len(blocks))]
        parts = []
        for at in range(0, len(shuffled), WINDOW):
            numbers = np.concatenate([np.arange(*block) for block in shuffled[at : at + WINDOW]])
            parts.append(rng.permutation(numbers))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def report(self, name: str) -> None:
        """Print on standard error how many records there are, and which were left out and why."""
        problems = self.problems
        report_left_out(problems)
        print(f"{name}: {len(self):,} records, {len(problems):,} left out", file=sys.stderr)


def report_left_out(problems: Sequence[str]) -> None:
    """Print the first problems on standard error, and how many there are more."""
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"left out: {problem}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        print(f"left out: {len(problems) - SHOWN_PROBLEMS} more", file=sys.stderr)


def open_mixture(
    paths: Sequence[str],
    name: str,
    images: Path | None = None,
    forbidden: tuple[str, ...] = (),
    target: Path | None = None,
) -> Mixture:
    """Open files and folders. Raises ValueError for a path of no known kind, or if no record is usable.

    `name` is the setting that holds the paths, for messages. `target` is the model that is asked: its words decide how;
    None: the newest embedded one. The rest is the sources'.
    """
    if not paths:
        raise ValueError(f"--{name} is missing: give {_KINDS}")
    guide = target is not None and not (target / VOCABULARY_FILE).exists()
    form = PROMPT_FORMS[-1] if target is None else form_of(target)
    mixture = Mixture([_open(Path(path), name, images, forbidden, guide, form) for path in paths])
    if not len(mixture):
        first = f"; the first: {mixture.problems[0]}" if mixture.problems else ""
        left_out = f"{len(mixture.problems)} records were left out{first}"
        raise ValueError(f"--{name} {' '.join(paths)} holds no usable record: {left_out}")
    return mixture


def _open(path: Path, name: str, images: Path | None, forbidden: tuple[str, ...], guide: bool, form: int) -> Source:
    if not path.exists():
        raise ValueError(f"--{name} {path} does not exist: give {_KINDS}")
    if path.suffix in (".json", ".jsonl"):
        return ConversationFile(path, images, forbidden)
    if is_lerobot(path):
        raise ValueError(
            f"--{name} {path} is a LeRobot data set, which has no answers to learn from: let the target answer with "
            f"'python -m adapters_training answers --model TARGET --data {path} --out OUT' and give "
            "OUT/conversations.jsonl"
        )
    if is_bag(path):
        return RecordedBag(path, guide)
    if path.is_dir():
        return ShardFolder(path, guide, form)
    raise ValueError(f"--{name} {path} is data of no known kind: give {_KINDS}")
