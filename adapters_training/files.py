"""Files that are whole at any time, checkpoints, and what a full disk comes to."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FULL = {errno.ENOSPC: "no space is left on its disk", errno.EDQUOT: "the disk quota is used up",
         errno.EFBIG: "files may not be as large as that here"}  # fmt: skip
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded", "File too large")
"""How safetensors words them, which is in Rust and raises no OSError."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; the file takes the place of `path` at the end, so that a kill leaves no half file.

    What fails leaves nothing. Raises OSError, naming `path`, where there is no room for it.
    """
    temporary = path.with_suffix(".part")
    try:
        with _named(path):
            yield temporary
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Give an empty folder to write to, of which every file takes its place in `folder` at the end.

    What fails leaves `folder` as it was. Raises OSError, naming `folder`, where there is no room.
    """
    temporary = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with _named(folder):
            temporary.mkdir(parents=True)
            yield temporary
            folder.mkdir(parents=True, exist_ok=True)
            # Weights before what describes them, which is what is looked for.
            for path in sorted(temporary.iterdir(), key=lambda path: path.suffix == ".json"):
                path.replace(folder / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def resumable(checkpoint: Path) -> Iterator[None]:
    """Make one sentence of a full disk: which file, what is missing, and what the same command does next.

    For trainings that write `checkpoint`. Raises OSError; everything else passes.
    """
    hook = threading.excepthook
    # TensorBoard writes in a thread of its own: what ends that thread reaches its next caller, which is enough.
    threading.excepthook = lambda end: None if full_disk(end.exc_value) is not None else hook(end)
    try:
        yield
    except Exception as error:
        number = full_disk(error)
        if number is None:
            raise
        path = getattr(error, "filename", None) or checkpoint.parent
        free = shutil.disk_usage(checkpoint.parent if checkpoint.parent.is_dir() else Path()).free
        then = f"goes on from the last checkpoint, {checkpoint}" if checkpoint.exists() else "begins anew"
        raise OSError(
            f"{path} cannot be written: {_FULL[number]} ({free / 1e6:.1f} MB are free); make room, then the same "
            f"command {then}"
        ) from None
    finally:
        threading.excepthook = hook


def full_disk(error: BaseException | None) -> int | None:
    """Return the errno of an exception that a full disk has led to, None for any other.

    torch and tensorboard wrap the system's own error in theirs, so what an error came out of is looked at too.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _FULL:
            return error.errno
        for number, text in zip(_FULL, _FULL_TEXTS, strict=True):
            if text in str(error):
                return number
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        number = full_disk(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from None


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write what `read_checkpoint` reads. Raises OSError where there is no room."""
    import torch

    # Through a Python file: the one that torch opens by a path loses the system's reason.
    with replacing(path) as part, part.open("wb") as file:
        torch.save(state, file)


def read_checkpoint(path: Path, advice: str) -> dict[str, Any]:
    """Return what torch saved, on the CPU. Raises ValueError, in one sentence that ends with `advice`."""
    import torch

    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state
    except Exception as error:  # unpickling raises whatever the bytes make it stumble over
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is no checkpoint ({reason}); {advice}") from None


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that a run appends to, if there is one; one that a kill left unfinished is cut off."""
    data = path.read_bytes() if path.exists() else b""
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    return data[:end].splitlines()
