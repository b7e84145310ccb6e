"""The file of the running goal: what is read is what was written, and nothing that lies in its place ends a node."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_vlm_nav.goal_file import MOST_BYTES, GoalFile, KeptGoal, path_of
from spec_vlm_nav.motion import Outcome, PlanarPose
from spec_vlm_nav.navigation_goal import NavigationGoal
from spec_vlm_nav.navigator_interfaces import Execution, Frame
from speculation.language.prompts import ActionKind as Kind
from speculation.language.prompts import ActionSize as Size
from speculation.language.prompts import Guidance, NavigationAction, ResponseOrder, Vocabulary

SEARCHES = Vocabulary(("silver",), ("bottle",), form=2)
AHEAD, LEFT = NavigationAction(Kind.FORWARD, Size.LARGE), NavigationAction(Kind.TURN_LEFT, Size.SMALL)


def prompt(goal: NavigationGoal, place: PlanarPose) -> Any:
    frame = Frame(b"jpeg", 0.0, 0.0, None, place)
    return goal.prompt(frame, SEARCHES, ResponseOrder.ACTION_FIRST, Guidance.NEVER)


def searched() -> NavigationGoal:
    """Return a goal that has moved, was blocked, and has seen a doorway."""
    goal = NavigationGoal("find the silver bottle")
    goal.understood(SEARCHES)
    goal.answered(
        prompt(goal, PlanarPose(0.0, 0.0, 0.0)), "A doorway on the left, about 2 m away.\nAction: forward large"
    )
    goal.moved(AHEAD, Execution(Outcome.BLOCKED, 0.3))
    goal.moved(LEFT, Execution(Outcome.DONE, LEFT.radians))
    goal.moved(AHEAD, None)
    return goal


KEPT = KeptGoal("0123456789abcdef" * 2, "find the silver bottle", 200.0, place=(1.0, -2.0), record=searched().record())


def test_a_goal_that_is_read_asks_what_it_would_have_asked(tmp_path: Path) -> None:
    file = GoalFile(tmp_path / "new" / "goal.json")
    assert file.read() is None
    file.write(KEPT)
    read = file.read()
    assert read is not None and 0.0 <= read.age() < 60.0
    assert msgspec.structs.replace(read, kernel="", at=0.0) == KEPT
    before, after = searched(), NavigationGoal(read.instruction)
    after.restore(read.record)
    after.understood(SEARCHES)
    place = PlanarPose(0.4, 0.1, 1.0)
    text = prompt(after, place).text
    assert text == prompt(before, place).text and after.actions == 3
    assert "forward large blocked" in text and "Doors: " in text
    file.forget()
    file.forget()
    assert file.read() is None


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(msgspec.json.encode(KEPT)), **changes}).encode()


PLACE_OF_FEW_DIRECTIONS = {"searched": {"places": [[0.0, 0.0, [True]]]}}
NO_GOALS = {
    "empty": b"",
    "cut": msgspec.json.encode(KEPT)[:-20],
    "binary": bytes(range(256)),
    "no object": b"[1, 2]",
    "nested": b"[" * 100_000,
    "of a newer version": changed(version=2),
    "without end": changed(left_s=None),
    "of another id": changed(id="../../x"),
    "past negative": changed(elapsed_s=-1.0),
    "few directions": changed(record=PLACE_OF_FEW_DIRECTIONS),
    "a place without directions": changed(record={"places": [[0.0, 0.0]]}),
    "an action without size": changed(record={"moved": [{"part": {"kind": "forward", "size": None}}]}),
    "large": b" " * (MOST_BYTES + 1),
}


@pytest.mark.parametrize("held", NO_GOALS.values(), ids=NO_GOALS)
def test_what_is_no_kept_goal_is_refused_in_a_sentence(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "goal.json"
    path.write_bytes(held)
    with pytest.raises(ValueError, match="is no kept goal"):
        GoalFile(path).read()


@settings(max_examples=50)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_file_with_a_wrong_byte_is_another_goal_or_none(tmp_path_factory: Any, place: int, byte: int) -> None:
    path = tmp_path_factory.mktemp("kept") / "goal.json"
    data = bytearray(msgspec.json.encode(KEPT))
    data[place % len(data)] = byte
    path.write_bytes(data)
    try:
        read = GoalFile(path).read()
    except ValueError as error:
        assert "is no kept goal" in str(error)
    else:
        assert read is not None
        NavigationGoal(read.instruction).restore(read.record)


@pytest.mark.parametrize(
    "of_before", [{"kernel": "f" * 16}, {"kernel": ""}, {"at": 1e12}], ids=["another start", "unknown", "future"]
)
def test_what_was_kept_before_the_machines_last_start_is_too_old(tmp_path: Path, of_before: dict[str, Any]) -> None:
    file = GoalFile(tmp_path / "goal.json")
    file.write(KEPT)
    read = file.read()
    assert read is not None
    assert math.isinf(msgspec.structs.replace(read, **of_before).age())


def test_a_file_belongs_to_one_living_process_and_a_folder_must_be_one(tmp_path: Path) -> None:
    first = GoalFile(tmp_path / "goal.json")
    with pytest.raises(OSError, match="belongs to another vlm_nav"):
        GoalFile(tmp_path / "goal.json")
    first.close()
    GoalFile(tmp_path / "goal.json").close()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        GoalFile(tmp_path / "file" / "goal.json")


@pytest.mark.parametrize(
    ("folder", "environment", "path"),
    [
        ("", {"HOME": "/h"}, "/h/.ros/spec_vlm_nav/goal.dog1.vlm_nav.0.json"),
        ("", {"ROS_HOME": "/r", "ROS_DOMAIN_ID": "7"}, "/r/spec_vlm_nav/goal.dog1.vlm_nav.7.json"),
        ("~/kept", {"HOME": "/h", "ROS_HOME": "/r"}, "/h/kept/goal.dog1.vlm_nav.0.json"),
    ],
)
def test_each_robot_and_domain_has_a_file(
    monkeypatch: pytest.MonkeyPatch, folder: str, environment: dict[str, str], path: str
) -> None:
    for name in ("ROS_HOME", "ROS_DOMAIN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert path_of(folder, "/dog1/vlm_nav") == Path(path)
