"""The simulator's labelled frames as conversations: an instruction about a frame, answered as the oracle would."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path

import numpy as np

from adapters_training import wording
from adapters_training.records import WINDOW, Frame, read_shard, shards, teaches
from adapters_training.sources import ASSISTANT, USER, Sample, Turn

EMPTY_KEPT = 3
"""Every third frame that teaches no more than to turn on is kept: they cost a look and teach one answer."""


class ShardFolder:
    """The frames of a folder of shards. `guide` explains the robot to a target that was not trained on its actions;
    `form` is the form of its prompts (`speculation.language.prompts.Vocabulary`), and only what suits it is asked.

    Raises ValueError for a folder without shards or with a broken one.
    """

    has_images = True

    def __init__(self, folder: Path, guide: bool = False, form: int = 2) -> None:
        self.folder, self.problems = folder, list[str]()
        self._guide, self._form, self._paths = guide, form, shards(folder)
        if not self._paths:
            raise ValueError(f"no training data in {folder}: run 'python -m adapters_training data' first")
        self._cache: OrderedDict[int, list[Frame]] = OrderedDict()
        self._frames: list[np.ndarray] = []
        self.words: set[tuple[str, str]] = set()
        for index, path in enumerate(self._paths):
            try:
                frames = self._shard(index)
            except ValueError as error:
                self.problems.append(f"{path}: {error}")
                frames = []
            usable = [i for i, frame in enumerate(frames) if frame.tasks and (teaches(frame) or i % EMPTY_KEPT == 0)]
            self.words.update((task.colour, task.object_class) for i in usable for task in frames[i].tasks)
            self._frames.append(np.array(usable, dtype=np.int64))
        self.blocks = [len(usable) for usable in self._frames]
        self._ends = np.cumsum(self.blocks)

    def frame(self, index: int) -> Frame:
        """Return frame `index`, its labels included."""
        shard = int(np.searchsorted(self._ends, index, side="right"))
        first = int(self._ends[shard]) - self.blocks[shard]
        return self._shard(shard)[int(self._frames[shard][index - first])]

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return a conversation about frame `index`: a target's own answer where one is stored, else the oracle's.

        The oracle is asked about something in view seven times of ten.
        """
        frame = self.frame(index)
        where = f"{self.folder}: frame {index}"
        answered = [task for task in frame.tasks if task.answer]
        if answered:
            task = rng.choice(answered)
        else:
            task = wording.choose_one([task for task in frame.tasks if wording.fits(task, self._form)], rng)
        prompt, answer = task.prompt, task.answer
        if not answer:
            order = wording.random_order(rng)
            prompt = wording.prompt(task, order, self._form, self._guide)
            answer = wording.answer(frame, task, rng, order)
        return Sample((Turn(USER, prompt), Turn(ASSISTANT, answer)), where, frame.jpeg)

    def _shard(self, index: int) -> list[Frame]:
        if index not in self._cache:
            self._cache[index] = read_shard(self._paths[index])
            if len(self._cache) > WINDOW:
                self._cache.popitem(last=False)
        self._cache.move_to_end(index)
        return self._cache[index]
