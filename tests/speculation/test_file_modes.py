"""Weights that training writes can be read by the verifier's user."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from speculation.file_modes import share


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_weights_have_the_mode_of_any_new_file(umask: None, tmp_path: Path) -> None:
    written, other = tmp_path / "exits.safetensors.part", tmp_path / "model.safetensors"
    for path in (written, other):
        save_file({"a": np.zeros(3)}, path)
        path.chmod(0o600)
    share(written)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (written, other)] == [0o640, 0o600], "and no file beside it"
    assert os.umask(0o027) == 0o027, "and leaves the umask as it was"
