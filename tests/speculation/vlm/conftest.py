"""A folder of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(tiny_target: Path, tmp_path: Path) -> Path:
    """A copy of the tiny target, to be changed."""
    return Path(shutil.copytree(tiny_target, tmp_path / "model"))
