"""The command that stores a model in 8 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters_training.__main__ import main
from speculation.vlm.load import load_vlm


def test_it_writes_a_model(tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["store", "--model", str(tiny_target), "--out", str(tmp_path / "out")]
    assert main(line) == 0
    assert "MB of weights" in capsys.readouterr().out
    assert load_vlm(tmp_path / "out").quantisation == "spec_vlm_nav_int8"
    assert main(line) == 2
    assert f"--out {tmp_path / 'out'} exists already" in capsys.readouterr().err
    assert main(["store", "--model", str(tmp_path), "--out", str(tmp_path / "other")]) == 2
    assert "has no config.json" in capsys.readouterr().err and not (tmp_path / "other").exists()
