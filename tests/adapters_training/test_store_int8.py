"""The command that stores a model in 8 bits and asks both about the same frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapters_training.__main__ import main
from adapters_training.records import write_shard
from speculation.vlm.load import load_vlm
from tests.adapters_training.frames import make_frame


def test_it_writes_a_model_and_counts_equal_answers(
    tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    rng = np.random.default_rng(0)
    write_shard(data / "seeds-0000000-0000002.msgpack", [make_frame(rng, side) for side in ("left", "right")])
    line = ["store", "--model", str(tiny_target), "--out", str(out)]
    assert main([*line, "--held-out", str(data), "--count", "2"]) == 0
    said = capsys.readouterr().out
    assert "MB of weights" in said and "of 2 greedy answers " in said
    assert load_vlm(out).quantisation == "spec_vlm_nav_int8"
    assert main(line) == 2
    assert f"--out {out} exists already" in capsys.readouterr().err
    assert main(["store", "--model", str(tmp_path), "--out", str(tmp_path / "other")]) == 2
    assert "has no config.json" in capsys.readouterr().err and not (tmp_path / "other").exists()
