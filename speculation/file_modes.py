"""Modes of the files that training writes: safetensors leaves them to their owner, who need not be the verifier."""

from __future__ import annotations

import os
from pathlib import Path


def share(*weights: Path) -> None:
    """Give files that were just written the mode that any new file has here. Raises OSError for those of another user.

    The mode is 0666 without the bits of the process's umask.
    """
    mask = os.umask(0)
    os.umask(mask)
    for path in weights:
        path.chmod(0o666 & ~mask)
