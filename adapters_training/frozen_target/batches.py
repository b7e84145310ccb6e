"""Records -> batches as the frozen target reads them; batch k of a run is a function of (settings, k) alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from adapters_training.encoding import Encoded, Encoder
from adapters_training.packing import IGNORE, Packer
from adapters_training.sources import BadRecord
from adapters_training.sources.mixture import Mixture
from adapters_training.sources.shards import ShardFolder
from adapters_training.tensors import TensorFields
from speculation.language.prompts import Vocabulary
from speculation.vlm.model import Vlm


@dataclass(frozen=True)
class Batch(TensorFields):
    """B rows of N tokens."""

    ids: Tensor
    """[B, N]."""
    labels: Tensor
    """[B, N]; labels[i] follows ids[i], IGNORE where nothing is learned."""
    positions: Tensor
    """[3, B, N]."""
    mask: Tensor | None
    """bool [B, 1, N, N], or None for causal."""
    pixels: Tensor | None
    """The patches of all images, or None."""
    grids: Tensor | None
    """How many patches each image has: time, rows, columns; or None."""
    truncated: int = 0
    """Rows that were cut."""
    problems: tuple[str, ...] = ()
    """Records that were passed over."""


B_co = TypeVar("B_co", covariant=True)


class Maker(Protocol[B_co]):
    """Makes a batch of `count` records, from place `first` on in the endless row of them that `number` numbers."""

    def __call__(self, number: Callable[[int], int], first: int, count: int, seed: int) -> B_co: ...


class Conversations:
    """Batches of conversations, padded on the right, where causal attention never looks."""

    def __init__(self, mixture: Mixture, encoder: Encoder, pad: int) -> None:
        self._mixture, self._encoder, self._pad = mixture, encoder, pad

    def __call__(self, number: Callable[[int], int], first: int, count: int, seed: int) -> Batch:
        """Return a batch; a record that cannot be used gives its place to the next. ValueError if all are bad."""
        rows, problems = [], list[str]()
        for place in range(first, first + count):
            rows.append(self._row(number, place, seed, problems))
        return collate(rows, self._pad, tuple(problems))

    def _row(self, number: Callable[[int], int], place: int, seed: int, problems: list[str]) -> Encoded:
        for attempt in range(len(self._mixture)):
            # The wording is sampled by place, so that it does not depend on earlier samples.
            rng = random.Random(f"{seed}/{place}")
            try:
                return self._encoder.encode(self._mixture.sample(number(place + attempt), rng))
            except BadRecord as problem:
                problems.append(str(problem))
        raise ValueError(f"no record of the data can be used; the last: {problems[-1]}")


class PackedFrames:
    """Batches of simulator frames with several questions each (`packing.py`), for targets of the embedded shape."""

    def __init__(self, frames: Mixture, vlm: Vlm, questions: int, augment: bool) -> None:
        """Raises ValueError where frames and target do not fit each other."""
        folders = [source for source in frames.sources if isinstance(source, ShardFolder)]
        if len(folders) < len(frames.sources):
            raise ValueError("--packed takes folders of simulator shards only; leave it out for other data")
        vocabulary = Vocabulary.load(vlm.folder)
        if vocabulary is None:
            raise ValueError(
                f"--packed needs a target that knows the simulator's objects: {vlm.folder} has no objects.json"
            )
        words = {word for folder in folders for word in folder.words}
        unknown = sorted(
            f"{colour} {kind}" for colour, kind in words
            if colour not in vocabulary.colours or kind not in vocabulary.classes
        )  # fmt: skip
        if unknown:
            raise ValueError(
                f"the data ask for {', '.join(unknown[:3])}, which {vlm.folder}/objects.json does not know"
            )
        self._frames, self._vlm, self._augment = frames, vlm, augment
        self._packer = Packer(vlm.tokenizer, vocabulary, questions)

    def __call__(self, number: Callable[[int], int], first: int, count: int, seed: int) -> Batch:
        """Return a batch of `count` frames."""
        places = [self._frames.place(number(place)) for place in range(first, first + count)]
        frames = [folder.frame(index) for folder, index in places if isinstance(folder, ShardFolder)]
        packed = self._packer.batch(frames, random.Random(f"{seed}/{first}"), augment=self._augment)
        frames_of = self._vlm.processor.frames
        assert frames_of is not None, "data with images are refused for a language model alone"
        pixels, grid = frames_of.patchify(packed.images)
        grids = torch.tensor([grid] * count)
        return Batch(
            packed.ids, packed.labels, packed.positions, packed.mask, torch.from_numpy(pixels), grids
        )  # fmt: skip


def collate(rows: Sequence[Encoded], pad: int, problems: tuple[str, ...] = ()) -> Batch:
    """Return conversations as one batch, padded on the right."""
    width = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), width), pad, np.int64)
    labels = np.full((len(rows), width), IGNORE, np.int64)
    positions = np.zeros((3, len(rows), width), np.int64)
    for index, row in enumerate(rows):
        count = len(row.ids)
        ids[index, :count], labels[index, :count], positions[:, index, :count] = row.ids, row.labels, row.positions
    pixels = [row.pixels for row in rows if row.pixels is not None]
    grids = [row.grid for row in rows if row.grid is not None]
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(labels),
        torch.from_numpy(positions),
        None,
        torch.from_numpy(np.concatenate(pixels)) if pixels else None,
        torch.tensor(grids) if grids else None,
        sum(row.truncated for row in rows),
        problems,
    )


@dataclass(frozen=True)
class Plan:
    """Which records each forward of a run takes. `numbers(epoch)` is an epoch's order of `records` records."""

    records: int
    order: Callable[[int], npt.NDArray[np.int64]]
    batch: int
    accumulation: int = 1
    processes: int = 1

    @property
    def records_a_step(self) -> int:
        """Records that one optimiser step learns from, over all processes."""
        return self.batch * self.accumulation * self.processes

    def steps(self, epochs: float) -> int:
        """Return the optimiser steps that so many epochs take, at least one."""
        return max(1, round(epochs * self.records / self.records_a_step))

    def first(self, step: int, forward: int, process: int) -> int:
        """Return the place of the first record of a forward: places of one step lie together."""
        return ((step * self.accumulation + forward) * self.processes + process) * self.batch


class Run(Dataset[B_co], Generic[B_co]):
    """The forwards of one process in a run: item k is forward k % accumulation of step k // accumulation."""

    def __init__(self, plan: Plan, maker: Maker[B_co], seed: int, process: int) -> None:
        self._plan, self._maker, self._seed, self._process = plan, maker, seed, process
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __getitem__(self, index: int) -> B_co:
        step, forward = divmod(index, self._plan.accumulation)
        first = self._plan.first(step, forward, self._process)
        return self._maker(self._number, first, self._plan.batch, self._seed)

    def _number(self, place: int) -> int:
        epoch, index = divmod(place, self._plan.records)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._plan.order(epoch)
        return int(self._order[index])

    def stream(self, first_step: int, last_step: int, workers: int, pinned: bool = False) -> Iterator[list[B_co]]:
        """Yield the batches of each step, `pinned` in memory that a GPU copies from while it computes."""
        accumulation = self._plan.accumulation
        loader = DataLoader(
            self, batch_size=None, sampler=range(first_step * accumulation, last_step * accumulation),
            num_workers=workers, pin_memory=pinned,
        )  # fmt: skip
        batches = iter(loader)
        for _ in range(first_step, last_step):
            yield [next(batches) for _ in range(accumulation)]
