"""The batches of a training of the pair: that of step k is a function of (seed, process, k), whoever prepares it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from adapters_training.packing import Batch, Packer
from adapters_training.records import Frame, batches
from speculation.vlm.processing import Processor

PREFETCHED = 4
"""Batches that each process keeps ready."""


class PairBatches(Dataset[Batch]):
    """Item k is what step k learns from; `wordless(k)` is whether its questions have no answers.

    `source` names the random stream of a process of the training.
    """

    def __init__(
        self,
        folders: tuple[str, ...],
        frames: int,
        source: str,
        packer: Packer,
        processor: Processor,
        wordless: Callable[[int], bool],
    ) -> None:
        self._folders, self._frames, self._source = [Path(folder) for folder in folders], frames, source
        self._packer, self._processor, self._wordless = packer, processor, wordless
        self._next = 0
        self._rest: Iterator[list[Frame]] | None = None

    def __getitem__(self, step: int) -> Batch:
        frames = self._frames_of(step)
        rng = random.Random(f"{self._source}/{step}")
        return self._packer.batch(frames, rng, answers=not self._wordless(step)).with_pixels(self._processor)

    def _frames_of(self, step: int) -> list[Frame]:
        # Steps are asked for in order, by a worker every so many: what lies between is read and left out.
        if self._rest is None or step < self._next:
            self._rest, self._next = batches(self._folders, self._frames, self._source, step), step
        for _ in range(step - self._next):
            next(self._rest)
        self._next = step + 1
        return next(self._rest)

    def stream(self, first: int, last: int, device: torch.device, workers: int) -> Iterator[Batch]:
        """Yield the batches of steps `first` to `last` - 1 on a device; so many processes prepare them ahead."""
        loader = DataLoader(
            self, batch_size=None, sampler=range(first, last), num_workers=workers,
            prefetch_factor=PREFETCHED if workers else None, pin_memory=device.type == "cuda",
            multiprocessing_context="spawn" if workers else None,
        )  # fmt: skip
        for batch in loader:
            yield batch.to(device)
