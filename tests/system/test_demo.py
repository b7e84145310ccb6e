"""The demo as processes: what it records and reports, and what it says is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.chain import FIND
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection
from vlm_nav_evaluation.report.run import load_run


def test_the_demo_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--target-model", str(tmp_path), "--draft-model", str(tmp_path)]) == 2
    assert f"no target model in {tmp_path}" in capsys.readouterr().err
    assert main(["demo", "--target", "bottle", "--out", str(tmp_path)]) == 2


@pytest.mark.usefixtures("forked_nodes")
def test_the_demo_records_reports_and_fails_honestly(
    turning_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--target-model", str(turning_model), "--draft-model", str(turning_model)]
    assert main(["demo", *folders, "--time", "10", "--no-gain", "--out", str(tmp_path / "demo")]) == 1
    text = capsys.readouterr().out
    assert "NOT FOUND the silver bottle" in text and "turn left small" in text
    assert (tmp_path / "demo" / "report.html").exists()
    run = load_run(tmp_path / "demo" / "bag")
    assert any(decision.frame and decision.stats is not None for decision in run.decisions)
    with FrameSource(tmp_path / "demo" / "bag", Selection()) as source:
        prompts = [item.prompt for item in source if isinstance(item, BagFrame)]
    assert prompts[0] == FIND and any(prompt.startswith(f"{FIND}\nDone: turn left small") for prompt in prompts)
