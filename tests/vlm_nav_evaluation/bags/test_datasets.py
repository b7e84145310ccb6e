"""LeRobot v3 data sets as questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculation.frames import decode_jpeg
from speculation.language.prompts import ResponseOrder, compose
from tests import bags
from tests.datasets import lerobot, shade, shades
from tests.vlm_nav_evaluation.bags.test_frames import ASKED, load
from vlm_nav_evaluation.bags.datasets import DatasetQuestions, check_recording, open_questions
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection


def shown(frames: list[BagFrame]) -> list[int]:
    return [shade(decode_jpeg(each.jpeg)) for each in frames]


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow", reason="the extra `lerobot` is not installed")
    pytest.importorskip("av", reason="the extra `lerobot` is not installed")
    tasks = (("find the red ball", shades(6)), ("open the door", shades(4, 6)), ("find the blue chair", shades(4, 10)))
    return lerobot(tmp_path / "walks", tasks)


def test_the_task_of_a_walk_is_what_is_asked_and_one_that_the_model_does_not_know_is_left_out(walks: Path) -> None:
    frames, problems = load(walks, Selection(order=ResponseOrder.ACTION_FIRST))
    assert shown(frames) == [*range(6), *range(10, 14)] == [each.index for each in frames]
    asked = ["find the red ball"] * 6 + ["find the blue chair"] * 4
    assert [each.instruction for each in frames] == asked
    assert [each.prompt for each in frames] == [compose(each, (), ResponseOrder.ACTION_FIRST) for each in asked]
    assert [each.label for each in frames] == [None] * 10
    assert [problem.index for problem in problems] == list(range(6, 10))
    assert "'open the door' names no known object" in problems[0].reason
    frames, problems = load(walks)
    assert len(frames) == 14 and not problems, "--instruction takes the place of the tasks"


def test_what_is_no_recording_is_one_sentence(tmp_path: Path, walks: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "none.mcap"):
        with pytest.raises(ValueError, match=str(path)):
            check_recording(path, "", "--topic")
    bag = bags.write(tmp_path / "bag", bags.camera(1))
    for path in (bag, next(bag.glob("*.mcap")), walks):
        check_recording(path, "", "--topic")
    with open_questions(bag, ASKED) as of_bag, open_questions(walks, ASKED) as of_walks:
        assert isinstance(of_bag, FrameSource) and isinstance(of_walks, DatasetQuestions)
