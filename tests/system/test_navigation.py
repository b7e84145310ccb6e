"""The whole chain as processes: every mode, and every process killed at the wrong moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.__main__ import main
from evaluation.bags.frames import BagFrame, FrameSource, Selection
from evaluation.report.run import load_run
from evaluation.report.timeline import steps
from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.messages import CLOUD_VERIFIED, EDGE_ONLY
from spec_vlm_nav.robots.go2 import SportApi
from speculation.trace import load
from tests.system.chain import FIND, Robot, finish, simulated
from tests.system.conftest import Lines, until


@pytest.fixture
def turning(turning_model: Path, lines: Lines) -> Iterator[Robot]:
    """A robot that turns left for ever."""
    with simulated(turning_model, lines) as robot:
        yield robot


@pytest.mark.parametrize("mode", ["cloud", "edge", "sd", "fsd"])
def test_a_model_that_says_stop_ends_the_goal_in_every_mode(
    mode: str, stopping_model: Path, lines: Lines, tmp_path: Path
) -> None:
    with simulated(stopping_model, lines, mode, trace=str(tmp_path / "trace.json")) as robot:
        end = finish(robot, robot.observer.send(FIND))
        answers = steps(load(tmp_path / "trace.json"))
        assert end.succeeded and end.actions == 0
        assert answers[-1].action == "stop" and answers[-1].whole.args["tokens"] > 0
        assert robot.observer.last["instruction"].data == FIND
        room = {"seed": 3, "difficulty": "middle", "target": "silver bottle", "layout": "room"}
        assert robot.observer.truth["room"] == room
        assert robot.observer.last["decoding_stats"].mode == mode
        assert robot.observer.last["decoding_stats"].answer == "Action: stop"


def test_while_the_verifier_is_away_the_draft_model_drives_slowly_and_the_goal_goes_on(turning: Robot) -> None:
    goal = turning.observer.send(FIND)
    until(lambda: turning.turns() >= 2, "robot turns")
    turning.runner.kill("verifier")
    until(lambda: turning.observer.last["navigation_action"].source == EDGE_ONLY, "the draft model decides alone")
    assert turning.observer.last["navigation_action"].speed_scale == 0.5
    assert goal.wait(0.0) is None
    turning.runner.start("verifier")
    until(lambda: turning.observer.last["navigation_action"].source == CLOUD_VERIFIED, "the verifier decides", 60.0)
    before = turning.turns()
    until(lambda: turning.turns() > before, "the goal goes on")
    goal.cancel()
    assert finish(turning, goal).cancelled


@pytest.mark.parametrize("victim", ["vlm_nav", "action_executor"])
def test_a_node_that_dies_in_mid_motion_leaves_a_standing_robot(turning: Robot, victim: str) -> None:
    turning.observer.send(FIND)
    until(lambda: turning.observer.speed > 0.2, "robot turns")
    turning.runner.kill(victim)
    if victim == "action_executor":
        until(lambda: turning.record.apis[-1] == SportApi.STOP_MOVE, "the bridge stops the robot")
    until(lambda: turning.stands, "the robot stands")
    if victim == "vlm_nav":
        until(lambda: "vlm_nav silent" in turning.observer.last["action_status"].message, "the executor says why")
    else:
        until(lambda: turning.record.said("action_executor is silent"), "navigation says why")


def test_a_silent_simulator_is_a_stale_camera(turning: Robot) -> None:
    turning.observer.send(FIND, time_allowance_s=20.0)
    until(lambda: turning.turns() >= 1, "robot turns")
    turning.runner.kill("sim_go2")
    until(lambda: turning.record.said("no camera frame") or turning.record.said("odom"), "navigation says why")


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
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=PROJECT, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: parameter response_order is 'backwards'; choose reason_first, action_first" in done.stderr


def test_the_demo_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--target-model", str(tmp_path), "--draft-model", str(tmp_path)]) == 2
    assert f"no target model in {tmp_path}" in capsys.readouterr().err
    assert main(["demo", "--target", "bottle", "--out", str(tmp_path)]) == 2


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
