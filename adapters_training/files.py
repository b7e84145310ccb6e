"""Files that are whole at any time, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; the file takes the place of `path` at the end, so that a kill leaves no half file."""
    temporary = path.with_suffix(".part")
    yield temporary
    temporary.replace(path)


def read_checkpoint(path: Path, advice: str) -> dict[str, Any]:
    """Return what torch saved, on the CPU. Raises ValueError, in one sentence that ends with `advice`."""
    import torch

    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state
    except Exception as error:  # unpickling raises whatever the bytes make it stumble over
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is no checkpoint ({reason}); {advice}") from None
