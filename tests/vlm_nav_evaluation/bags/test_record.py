"""The labelled bag that the simulator's oracle leaves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.prompts import ActionKind, NavigationAction
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.bags.files import read
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection
from vlm_nav_evaluation.bags.record import Look, Odometry, walk
from vlm_nav_simulation.ground_truth import observe
from vlm_nav_simulation.oracle import Oracle
from vlm_nav_simulation.world import World


def frames_of(path: Path) -> list[BagFrame]:
    with FrameSource(path, Selection()) as source:
        items = list(source)
    frames = [item for item in items if isinstance(item, BagFrame)]
    assert frames == items
    return frames


def test_the_same_command_makes_the_same_frames_and_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "a"):
        arguments = ["record", "--out", str(tmp_path / name), "--frames", "5", "--size", "112", "--difficulty", "easy",
                     "--form", "1"]  # fmt: skip
        assert main(arguments) == 0
    assert "5 frames of 1 room," in capsys.readouterr().out
    first, second = frames_of(tmp_path / "a"), frames_of(tmp_path / "b")
    assert first == second and len(first) == 5
    assert all(item.label is not None and item.instruction.startswith("find the ") for item in first)
    topics = {topic for topic, _, _ in read(tmp_path / "a")}
    assert topics == {"/instruction", "/camera/image/compressed", "/vlm_nav/prompt", "/oracle_action", "/odom"}
    assert main([*arguments[:2], str(tmp_path / "c"), *arguments[3:], "--response-order", "action_first"]) == 0
    for plain, other in zip(first, frames_of(tmp_path / "c"), strict=True):
        assert plain.prompt.startswith(plain.instruction) and other.prompt == f"{plain.prompt}\nAction first"
    assert first[0].prompt == first[0].instruction and "\nDone: " in first[-1].prompt
    assert main([*arguments[:2], str(tmp_path / "d"), *arguments[3:-2]]) == 0
    for plain, other in zip(first, frames_of(tmp_path / "d"), strict=True):
        added = other.prompt.removeprefix(f"{plain.prompt}\n").split("\n")
        assert (other.jpeg, other.label) == (plain.jpeg, plain.label)
        assert added[0].startswith("Seen: here ") and all(line.startswith("Last seen: ") for line in added[1:])


def test_a_walk_ends_with_the_stop_that_the_oracle_says_there() -> None:
    scene = scene_of(1_000_004, "easy", "")
    moments = list(walk(scene, 1.0, 112))
    looks = [moment for moment in moments if isinstance(moment, Look)]
    assert looks[-1].decision.action.kind is ActionKind.STOP
    assert [look.seconds for look in looks] == pytest.approx(range(len(looks)), abs=0.051)
    assert looks[0].past == ()
    for before, after in pairwise(looks):
        assert after.past[: len(before.past)] == before.past
    done = [action for action in looks[-1].past if isinstance(action, NavigationAction)]
    assert done and all(action.kind is not ActionKind.STOP for action in done)
    odometry = [moment for moment in moments if isinstance(moment, Odometry)]
    with World(scene, 112) as world:
        world.set_pose(*odometry[-1].pose)
        decision = Oracle(scene).decide(world.pose, scene.target_index, observe(world), done)
        assert decision.action.kind is ActionKind.STOP


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--frames", "0"], "--frames 0 is outside 1 to"),
        (["--camera-hz", "nan"], "--camera-hz nan is outside"),
        (["--target", "bottle"], "must be a colour and a class"),
    ],
)
def test_what_cannot_be_recorded_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["record", "--out", str(tmp_path / "bag"), *arguments]) == 2
    printed = capsys.readouterr().err.strip()
    assert complaint in printed and printed.startswith("record: ") and "\n" not in printed
