"""Files that are whole at any time, and checkpoints."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from speculation.text import first_line


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; the file takes the place of `path` at the end, so that a kill leaves no half file.

    What fails leaves nothing. Raises OSError, naming `path`, where there is no room for it.
    """
    temporary = path.with_suffix(".part")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Give an empty folder to write to, of which every file takes its place in `folder` at the end.

    What fails leaves `folder` as it was.
    """
    temporary = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        folder.mkdir(parents=True, exist_ok=True)
        # Weights before what describes them, which is what is looked for.
        for path in sorted(temporary.iterdir(), key=lambda path: path.suffix == ".json"):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write what `read_checkpoint` reads. Raises OSError where there is no room."""
    import torch

    # Through memory: torch's own files lose the system's reason where they cannot be written.
    data = io.BytesIO()
    torch.save(state, data)
    with replacing(path) as part:
        part.write_bytes(data.getbuffer())


def read_checkpoint(path: Path, advice: str) -> dict[str, Any]:
    """Return what torch saved, on the CPU. Raises ValueError, in one sentence that ends with `advice`."""
    import torch

    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
        return dict(state.items())
    except Exception as error:  # unpickling raises whatever the bytes make it stumble over
        raise ValueError(f"{path} is no checkpoint ({first_line(error)}); {advice}") from None


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that a run appends to, if there is one; one that a kill left unfinished is cut off."""
    data = path.read_bytes() if path.exists() else b""
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    return data[:end].splitlines()
