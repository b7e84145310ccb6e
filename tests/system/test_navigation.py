"""The demo as processes, and what is said where something cannot start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spec_vlm_nav.graph import PROJECT
from tests.forked import run
from tests.system.chain import FIND
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection
from vlm_nav_evaluation.report.run import load_run


def missing(name: str, folder: Path) -> list[str]:
    if name == "verifier":
        return ["-m", "cloud_verifier", "serve", "--model", str(folder), "--bind", "tcp://127.0.0.1:*"]
    options = ["--ros-args", "-p", f"draft_model:={folder}", "-p", "autostart:=true"]
    return ["-m", "spec_vlm_nav.nodes.vlm_nav", *options]


@pytest.mark.parametrize("name", ["verifier", "vlm_nav"])
def test_a_missing_model_folder_is_one_sentence_and_a_failed_start(name: str, tmp_path: Path) -> None:
    words = [sys.executable, *missing(name, tmp_path / "nothing")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=PROJECT, check=False)
    assert done.returncode == 2
    assert str(tmp_path / "nothing") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_parameter_that_is_none_of_its_words_is_one_sentence() -> None:
    words = [sys.executable, "-m", "spec_vlm_nav.nodes.vlm_nav", "--ros-args", "-p", "response_order:=backwards"]
    code, errors = run(words, PROJECT)
    assert code == 2 and "Traceback" not in errors
    assert "error: parameter response_order is 'backwards'; choose reason_first, action_first" in errors


def test_the_demo_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--target-model", str(tmp_path), "--draft-model", str(tmp_path)]) == 2
    assert f"no target model in {tmp_path}" in capsys.readouterr().err
    assert main(["demo", "--target", "bottle", "--out", str(tmp_path)]) == 2


@pytest.mark.usefixtures("forked_nodes")
def test_the_demo_records_reports_and_fails_honestly(
    turning_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--target-model", str(turning_model), "--draft-model", str(turning_model)]
    assert main(["demo", *folders, "--time", "6", "--out", str(tmp_path / "demo")]) == 1
    text = capsys.readouterr().out
    assert "NOT FOUND the silver bottle" in text and "turn left small" in text
    assert (tmp_path / "demo" / "report.html").exists()
    run = load_run(tmp_path / "demo" / "bag")
    assert any(decision.frame and decision.stats is not None for decision in run.decisions)
    with FrameSource(tmp_path / "demo" / "bag", Selection()) as source:
        prompts = [item.prompt for item in source if isinstance(item, BagFrame)]
    assert prompts[0] == FIND and any(prompt.startswith(f"{FIND}\nDone: turn left small") for prompt in prompts)
