"""The batch of a step is the same whoever prepares it, and wherever a run goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from adapters_training.packing import Batch, Packer
from adapters_training.pair_batches import PairBatches
from adapters_training.records import write_shard
from adapters_training.shapes import known_objects
from speculation.vlm.processing import Processor
from tests.adapters_training.frames import make_frame

CPU = torch.device("cpu")


def every_third(period: int, step: int) -> bool:
    return step % period == 0


def steps(folder: Path, source: str = "1/0") -> PairBatches:
    processor = Processor.load(folder / "processor")
    packer = Packer(processor.tokenizer, known_objects(), questions=2)
    return PairBatches((str(folder / "data"),), 2, source, packer, processor, partial(every_third, 3))


def equal(one: Batch, other: Batch) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("ids", "labels", "mask", "cells", "pixels"))
    return all(torch.equal(own, its) for own, its in pairs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, processor_folder: Path) -> Path:
    folder = Path(tmp_path_factory.mktemp("steps"))
    (folder / "processor").symlink_to(processor_folder)
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    sides = ("left", "ahead", "right", "slightly left", "slightly right")
    write_shard(folder / "data" / "seeds-0000000-0000025.msgpack", [make_frame(rng, side) for side in sides])
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_whoever_prepares_them_and_wherever_a_run_goes_on(folder: Path, workers: int) -> None:
    """Seven steps of two frames are more than one pass over the five frames."""
    plain = [steps(folder)[step] for step in range(7)]
    streamed = list(steps(folder).stream(0, 7, CPU, workers))
    resumed = list(steps(folder).stream(4, 7, CPU, workers))
    assert all(equal(own, other) for own, other in zip(streamed, plain, strict=True))
    assert all(equal(own, other) for own, other in zip(resumed, plain[4:], strict=True))
    assert [bool(each.weights.any()) for each in plain] == [False, True, True, False, True, True, False]


def test_steps_and_processes_see_other_batches(folder: Path) -> None:
    assert not equal(steps(folder)[1], steps(folder)[2])
    assert not equal(steps(folder)[1], steps(folder, "1/1")[1])
