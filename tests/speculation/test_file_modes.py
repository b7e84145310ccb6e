"""Weights that training writes can be read by the verifier's user."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from speculation.file_modes import share_weights


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_weights_have_the_mode_of_any_new_file(umask: None, tmp_path: Path) -> None:
    for name in ("model.safetensors", "exits.safetensors.part"):
        save_file({"a": np.zeros(3)}, tmp_path / name)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "key_secret").touch(0o600)
    share_weights(tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"model.safetensors": 0o640, "exits.safetensors.part": 0o640, "key_secret": 0o600}
    assert os.umask(0o027) == 0o027, "and leaves the umask as it was"
