"""Modes of the files that training writes: safetensors leaves them to their owner, who need not be the verifier."""

from __future__ import annotations

import os
from pathlib import Path


def share_weights(folder: Path) -> None:
    """Give the weights in a folder the mode that any new file has here. Raises OSError for those of another user."""
    mask = os.umask(0)
    os.umask(mask)
    for weights in folder.glob("*.safetensors*"):
        weights.chmod(0o666 & ~mask)
