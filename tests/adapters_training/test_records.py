"""Batches: endless, shuffled, and the same from any step on."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.records import Frame, batches, write_shard
from tests.adapters_training.frames import make_frame


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    rng, made = np.random.default_rng(0), []
    for name, shards in (("one", 5), ("two", 2)):
        folder = Path(tmp_path_factory.mktemp(name))
        for shard in range(shards):
            write_shard(folder / f"seeds-{shard}.msgpack", [make_frame(rng) for _ in range(5)])
        made.append(folder)
    return made


def names(found: list[list[Frame]]) -> list[tuple[bytes, ...]]:
    return [tuple(frame.jpeg for frame in batch) for batch in found]


@settings(max_examples=15, deadline=None)
@given(skip=st.integers(0, 40))
def test_skipping_is_the_same_as_having_taken(folders: list[Path], skip: int) -> None:
    whole = names(list(islice(batches(folders, 3, "7/0"), skip + 4)))
    assert names(list(islice(batches(folders, 3, "7/0", skip), 4))) == whole[skip:]


def test_an_epoch_holds_every_frame_once_and_the_next_is_shuffled_anew(folders: list[Path]) -> None:
    taken = names(list(islice(batches(folders, 1, "7/0"), 70)))
    assert len(set(taken[:35])) == 35 and set(taken[35:]) == set(taken[:35])
    assert taken[:35] != taken[35:]
    assert names(list(islice(batches(folders, 1, "8/0"), 35))) != taken[:35]


def test_no_data_and_too_little_are_one_sentence(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run 'python -m adapters_training data' first"):
        next(batches([tmp_path], 2, "1"))
    with pytest.raises(ValueError, match="fewer than 1000 usable frames"):
        next(batches(folders, 1000, "1"))


@pytest.mark.parametrize("content", [b"", b"\x93\x01\x02\x03", b"no msgpack at all"])
def test_a_damaged_shard_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "seeds-1.msgpack").write_bytes(content)
    with pytest.raises(ValueError, match=r"seeds-1.msgpack is no shard of training frames .*make the data again"):
        next(batches([tmp_path], 1, "1"))
