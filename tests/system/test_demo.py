"""The demo as processes: what it records and reports, and what it says is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rosbags.rosbag2 import CompressionMode, StoragePlugin

from tests import bags
from tests.system.chain import FIND
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection
from vlm_nav_evaluation.report.run import load_run


def questions(bag: Path) -> list[BagFrame]:
    """Return what vlm_nav was asked while a bag was recorded."""
    with FrameSource(bag, Selection(asked=True)) as source:
        found = list(source)
    assert all(isinstance(item, BagFrame) for item in found), found
    return [item for item in found if isinstance(item, BagFrame)]


def test_the_demo_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--target-model", str(tmp_path), "--draft-model", str(tmp_path)]) == 2
    assert f"no target model in {tmp_path}" in capsys.readouterr().err
    assert main(["demo", "--target", "bottle", "--out", str(tmp_path)]) == 2


def test_the_demo_records_reports_and_fails_honestly(
    turning_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--target-model", str(turning_model), "--draft-model", str(turning_model)]
    assert main(["demo", *folders, "--time", "6", "--no-gain", "--out", str(tmp_path / "demo")]) == 1
    text = capsys.readouterr().out
    assert "NOT FOUND the silver bottle" in text and "turn left small" in text
    assert (tmp_path / "demo" / "report.html").exists()
    run = load_run(tmp_path / "demo" / "bag")
    assert any(decision.frame and decision.stats is not None for decision in run.decisions)
    asked = questions(tmp_path / "demo" / "bag")
    assert "Done" not in asked[0].prompt and "\nDone: turn left small" in asked[-1].prompt
    assert {question.instruction for question in asked} == {FIND}
    # As `ros2 bag record` leaves bags: storage, version of the metadata, compression and number of files.
    layout = (StoragePlugin.SQLITE3, 9, CompressionMode.FILE, 3)
    again = bags.rerecorded(tmp_path / "demo" / "bag", tmp_path / "walk", *layout)
    assert questions(again) == asked
    options = ["--asked", "--modes", "sd", "--answers", "constrained", "--out", str(tmp_path / "replay")]
    assert main(["replay", str(again), *folders, *options]) == 0
    answered = sum(question.given is not None for question in asked)
    arms = json.loads((tmp_path / "replay" / "report.json").read_text())["arms"]
    assert answered and set(arms) == {"sd"}
    assert all(arm["given"] == {"compared": answered, "different": []} for arm in arms.values())
