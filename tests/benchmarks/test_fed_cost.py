"""What a fed head costs: the figures add up, and what cannot be is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fed_cost import main, wire_costs
from speculation.wire import Commit, Features, encode
from tests.speculation.fed.heads import tiny_config
from vlm_nav_evaluation.experiment import command


def test_bytes_are_those_of_the_messages() -> None:
    config = tiny_config(size=60, prompt_tokens=8)
    found = wire_costs(config, answer=12, tau=5)
    assert found["token"] == 64
    message = Features(1, 0, [300] * 8, bytes(8 * 64))
    assert found["prompt"] == len(encode(message))
    whole = found["prompt"] + 12 * 64
    plain = len(encode(Commit(1, 1, 0, [300], bytes(8), False)))
    filled = len(encode(Commit(1, 1, 0, [300], bytes(8), False, features=bytes(64))))
    assert whole <= found["step"] <= whole + 3 * (filled - plain - 64 + 2), "three commits, a few bytes of frame each"


def test_a_run_writes_its_figures(
    tmp_path: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    words = ["--draft-model", str(tiny_draft), "--width", "32", "--heads", "2", "--repeats", "2", "--answer", "6",
             "--leaves", "1", "3", "--mbits", "8", "--save"]  # fmt: skip
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "fed head, leaves: 3" in shown and "draft model, prefill" in shown
    (path,) = tmp_path.glob("fed_cost_*.json")
    data = json.loads(path.read_text())
    assert data["seconds"]["8 Mbit/s"]["step"] == pytest.approx(data["bytes"]["step"] * 1e-6)
    assert all(0.0 < row["s"]["min"] <= row["s"]["median"] for row in data["forwards"].values())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--leaves", "0"], "must be at least 1"),
        (["--shape", "tiny", "--width", "30"], "no multiple of two numbers for each of 4 heads"),
        (["--shape", "tiny", "--size", "253"], "features of 253 numbers"),
    ],
)
def test_what_cannot_be_measured_is_named(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert complaint in capsys.readouterr().err
