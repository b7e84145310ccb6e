"""Files are whole or not there, whatever stops their writing."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from adapters_training.files import filling, read_checkpoint, replacing, write_checkpoint

WEIGHTS = {"weight": torch.zeros(300_000)}


@contextmanager
def small_files(limit: int = 200_000) -> Iterator[None]:
    """Let the kernel end every write beyond so many bytes of a file: what a full disk does, without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write_checkpoint({"step": 1}, path)
    with small_files(), pytest.raises(OSError, match="checkpoint.pt") as caught:
        write_checkpoint({"step": 2, **WEIGHTS}, path)
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == [path] and read_checkpoint(path, "") == {"step": 1}


def test_what_is_no_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save(WEIGHTS, path)
    for damage in (lambda: os.truncate(path, 9_000), lambda: os.truncate(path, 0), lambda: torch.save([1], path)):
        damage()
        with pytest.raises(ValueError, match=r"checkpoint.pt is no checkpoint \(.*\); delete it$"):
            read_checkpoint(path, "delete it")


def test_a_folder_that_is_not_filled_stays_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with filling(folder) as part:
        (part / "config.json").write_text("old")
    with pytest.raises(ZeroDivisionError), filling(folder) as part:
        (part / "config.json").write_text("new")
        _ = 1 / 0
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "config.json"]
    assert (folder / "config.json").read_text() == "old"
    with filling(folder) as part:
        (part / "model.safetensors").touch()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"], "others stay"


def test_what_fails_leaves_no_half_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "file") as part:
        part.write_text("half")
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
