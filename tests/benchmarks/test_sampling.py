"""The comparison of sampling schemes, over real sockets with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import sampling

pytestmark = pytest.mark.usefixtures("forked_verifiers")


def test_bytes_are_measured_on_the_socket(
    tiny_target: Path,
    tiny_draft: Path,
    kept: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = sampling.main(
        ["--target-model", str(tiny_target), "--draft-model", str(tiny_draft), "--frames", "random", "--steps", "2",
         "--max-tokens", "6", "--gamma", "2", "--save"]
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    data = json.loads((kept / "sampling_raw_float32.json").read_text())
    up = {name: each["bytes_up_per_round"] for name, each in data["figures"].items()}
    down = {name: each["bytes_down_per_round"] for name, each in data["figures"].items()}
    # Two float64 probabilities, or two distributions of float32, on top of the tokens.
    assert up["coupled sd"] < up["split sd"] < up["coupled sd"] + 40
    assert up["whole sd"] > data["vocabulary"] * 4
    assert down["split sd"] > down["coupled sd"] + 200
    assert (kept / "sampling.png").is_file()
