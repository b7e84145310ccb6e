from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.predictor import COLUMNS, WITH, WITHOUT, compare, label, main, pair
from edge_drafter import DecodingStats
from vlm_nav_evaluation.experiment.run import Answer, Run
from vlm_nav_evaluation.tables import figures_table

pytestmark = pytest.mark.usefixtures("forked_verifiers")


def step(total_s: float, wasted_s: float) -> Answer:
    stats = DecodingStats("sd", tokens=10, rounds=3, drafted=12, accepted=7, draft_forwards=12, total_s=total_s,
                          wasted_s=wasted_s)  # fmt: skip
    return Answer((1, 2), stats)


def test_waste_and_latency_are_compared_draft_by_draft() -> None:
    run = Run(
        {
            label("weak", "sd", WITHOUT): [step(1.0, 0.2), step(2.0, 0.4)],
            label("weak", "sd", WITH): [step(0.9, 0.1), step(2.1, 0.2)],
            label("shipped", "sd", WITHOUT): [step(1.0, 0.0)],
            label("shipped", "sd", WITH): [step(1.0, 0.0)],
        }
    )
    weak, shipped = compare(run, ["weak", "shipped"], ["sd"])
    assert weak["wasted_s_per_token"] == pytest.approx([0.03, 0.015])
    assert weak["waste_change"] == pytest.approx(-0.5) and weak["latency_change"] == pytest.approx(0.0)
    assert weak["faster_steps"] == 0.5
    assert (shipped["draft"], shipped["waste_change"]) == ("shipped", 0.0)
    printed = figures_table("", run.figures(), COLUMNS)
    assert "weak, sd, predictor" in printed and "30.00" in printed


def test_a_pair_names_its_draft_and_its_predictor() -> None:
    assert pair("weak=out/weak") == ("weak", Path("out/weak"), "out/weak")
    assert pair("weak=out/weak,out/fit") == ("weak", Path("out/weak"), "out/fit")
    with pytest.raises(argparse.ArgumentTypeError, match="give NAME=DRAFT"):
        pair("models/draft")


def test_every_draft_answers_alike_with_and_without_its_predictor(
    tiny_target: Path, tiny_draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = f"--target-model {tiny_target} --draft one={tiny_draft},off --draft two={tiny_draft},off --profile raw"
    line = f"{models} --frames random --guide never --max-tokens 6 --steps 2 --modes sd".split()
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert "one, sd, none" in printed and "mean step" in printed
    assert any(line.startswith("two, sd ") and line.count("%") == 4 for line in printed.splitlines())
    assert "frames on which the answers differ: 0 of 2" in printed
    assert main([*line, "--draft", "one=nowhere"]) == 2
    assert "--draft: two drafts have one name" in capsys.readouterr().err
