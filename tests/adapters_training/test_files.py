"""Files are whole or not there, whatever stops their writing; a full disk is one sentence."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adapters_training.files import filling, full_disk, read_checkpoint, replacing, resumable, write_checkpoint

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


def test_a_folder_that_does_not_fit_stays_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with filling(folder) as part:
        (part / "config.json").write_text("old")
    with small_files(), pytest.raises(OSError, match="model'$"), filling(folder) as part:
        (part / "config.json").write_text("new")
        save_file(WEIGHTS, str(part / "model.safetensors"))
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "config.json"]
    assert (folder / "config.json").read_text() == "old"
    with filling(folder) as part:
        save_file(WEIGHTS, str(part / "model.safetensors"))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"], "others stay"


@pytest.mark.parametrize("kept", [True, False])
def test_the_sentence_names_the_file_what_is_missing_and_what_comes_next(tmp_path: Path, kept: bool) -> None:
    path = tmp_path / "checkpoint.pt"
    if kept:
        write_checkpoint({"step": 1}, path)
    with small_files(), pytest.raises(OSError) as caught, resumable(path):
        write_checkpoint(dict(WEIGHTS), path)
    text = str(caught.value)
    assert text.startswith(f"{path} cannot be written: files may not be as large as that here (")
    assert "MB are free); make room, then the same command " in text and "\n" not in text
    assert text.endswith(f"goes on from the last checkpoint, {path}" if kept else "begins anew")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_errors_about_anything_else_pass(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ZeroDivisionError), resumable(path), replacing(path) as part:
        part.write_text("half")
        _ = 1 / 0
    with pytest.raises(FileNotFoundError), resumable(path):
        (tmp_path / "nowhere" / "file").write_text("")
    assert not list(tmp_path.iterdir())


def test_what_wraps_a_full_disk_is_known() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    wrapped = RuntimeError("PytorchStreamWriter failed writing file")
    wrapped.__context__ = full
    assert full_disk(full) == full_disk(wrapped) == errno.ENOSPC
    assert full_disk(RuntimeError("I/O error: No space left on device (os error 28)")) == errno.ENOSPC
    assert full_disk(OSError(errno.EACCES, "Permission denied")) is None and full_disk(None) is None
    circle = ValueError("round and round")
    circle.__context__ = circle.__cause__ = circle
    assert full_disk(circle) is None


def test_a_thread_that_finds_the_disk_full_prints_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda end: shown.append(end.exc_value))

    def write(error: Exception) -> None:
        raise error

    other = ValueError("another")
    with resumable(tmp_path / "checkpoint.pt"):
        for error in (OSError(errno.ENOSPC, ""), other):
            thread = threading.Thread(target=write, args=(error,))
            thread.start()
            thread.join()
    assert shown == [other]
