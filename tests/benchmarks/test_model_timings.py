"""The benchmark of real sizes runs on a tiny one; its shapes have as many weights as the published checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import shapes
from benchmarks.model_timings import main

FAST = ["--preset", "tiny", "--repeats", "1", "--batches", "1", "3", "--lengths", "1", "5", "--frame", "56", "84"]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("qwen2-vl-2b", 2_208_985_600),
        ("qwen2.5-vl-7b", 8_292_166_656),
        ("vicuna-13b", 13_015_864_320),
    ],
)
def test_presets_have_the_published_number_of_weights(name: str, count: int) -> None:
    assert shapes.parameters(shapes.SHAPES[name]) == count


def test_a_tiny_model_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FAST, "--out", str(tmp_path / "times.json")]) == 0
    text = capsys.readouterr().out
    assert "verify gamma + 1 (T_q), ms" in text and "tiny: ms of a forward" in text
    found = json.loads((tmp_path / "times.json").read_text())
    assert found["machine"]
    times = found["models"]["tiny"]
    assert times["prompt_tokens"] == 4 + 2 * 3 + 64
    assert len(times["layer_ms"]) == 3
    assert sorted(times["verify_ms"]) == ["1", "3"]
    names = ("vision_ms", "prefill_ms", "decode_ms", "head_ms", "exit_ms", "verify_gamma_ms")
    names += ("verify_with_logits_ms", "prefill_to_library", "decode_to_library")
    every = [times[name] for name in names]
    assert all(value > 0 for value in every + times["layer_ms"] + list(times["verify_ms"]["3"].values()))
    assert times["weight_bytes"] >= 2 * times["parameters"]
    assert times["peak_bytes"] > times["weight_bytes"]
