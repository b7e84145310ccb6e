"""Records -> batches as the frozen target reads them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adapters_training.batches import TensorFields
from adapters_training.encoding import Encoded, Encoder
from adapters_training.packing import IGNORE, Packer
from adapters_training.sources import BadRecord
from adapters_training.sources.mixture import Mixture
from adapters_training.sources.shards import ShardFolder
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
            raise ValueError("--packed takes folders of simulator shards only; give --no-packed for other data")
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
        frames = [self._frames.frame(number(place)) for place in range(first, first + count)]
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
