from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.predictor import WITH, WITHOUT, Arm, compare, pair, text
from edge_drafter import DecodingStats, StepResult


def step(total_s: float, wasted_s: float) -> StepResult:
    stats = DecodingStats("sd", tokens=10, rounds=3, drafted=12, accepted=7, draft_forwards=12, total_s=total_s,
                          wasted_s=wasted_s)  # fmt: skip
    return StepResult((1, 2), stats)


def test_waste_and_latency_are_compared_draft_by_draft() -> None:
    results = {
        Arm("weak", "sd", WITHOUT): [step(1.0, 0.2), step(2.0, 0.4)],
        Arm("weak", "sd", WITH): [step(0.9, 0.1), step(2.1, 0.2)],
        Arm("shipped", "sd", WITHOUT): [step(1.0, 0.0)],
        Arm("shipped", "sd", WITH): [step(1.0, 0.0)],
    }
    weak, shipped = compare(results)
    assert weak["wasted_s_per_token"] == pytest.approx([0.03, 0.015])
    assert weak["waste_change"] == pytest.approx(-0.5) and weak["latency_change"] == pytest.approx(0.0)
    assert weak["faster_steps"] == 0.5
    assert (shipped["draft"], shipped["waste_change"]) == ("shipped", 0.0)
    assert "weak, sd, predictor" in text(results) and "30.00" in text(results)


def test_a_pair_names_its_draft_and_its_predictor() -> None:
    assert pair("weak=out/weak") == ("weak", Path("out/weak"), "out/weak")
    assert pair("weak=out/weak,out/fit") == ("weak", Path("out/weak"), "out/fit")
    with pytest.raises(argparse.ArgumentTypeError, match="give NAME=DRAFT"):
        pair("models/draft")
