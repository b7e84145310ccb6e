"""Data sets that are no bags as questions: LeRobot v3 and nuScenes-like folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters_training.sources import LeftOut
from speculation.frames import decode_jpeg
from speculation.language.prompts import ResponseOrder, Vocabulary, compose
from tests import bags
from tests.datasets import CAMERA, lerobot, nuscenes, shade, shades
from tests.models import CLASSES, COLOURS
from vlm_nav_evaluation.bags.datasets import DatasetQuestions, check_recording, files_of, open_questions
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection
from vlm_nav_evaluation.bags.nuscenes import NuScenes

WORDS = Vocabulary(COLOURS, CLASSES)
ASKED = Selection(instruction="find the red ball")


def load(path: Path, selection: Selection = ASKED) -> tuple[list[BagFrame], list[LeftOut]]:
    with open_questions(path, selection, WORDS) as source:
        items = list(source)
        assert list(source) == items, "a second look gives the same"
    frames = [item for item in items if isinstance(item, BagFrame)]
    return frames, [item for item in items if isinstance(item, LeftOut)]


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


@pytest.mark.parametrize(
    ("changes", "indices"),
    [
        ({"skip": 11}, (11, 12, 13)),
        ({"limit": 2}, (0, 1)),
        ({"fps": 2.0}, (0, 5, 10)),
        ({"fps": 5.0, "limit": 3}, (0, 2, 4)),
    ],
)
def test_skip_rate_and_limit_choose_frames(walks: Path, changes: dict[str, Any], indices: tuple[int, ...]) -> None:
    selection = Selection(instruction="find the red ball", topic="front", **changes)
    frames, _ = load(walks, selection)
    assert [each.index for each in frames] == list(indices) == shown(frames)
    with open_questions(walks, selection) as source:
        assert len(source) == len(indices)


def test_what_is_lost_of_a_walk_is_left_out(walks: Path) -> None:
    (walks / "videos" / CAMERA / "chunk-000" / "file-000.mp4").unlink()
    frames, (problem,) = load(walks, Selection(instruction="find the red ball", limit=2))
    assert shown(frames) == [10, 11] and "file-000.mp4 cannot be read" in problem.reason
    (walks / "videos" / CAMERA / "chunk-000" / "file-001.mp4").unlink()
    frames, problems = load(walks)
    assert not frames and len(problems) == 2


@pytest.mark.parametrize("inside", [True, False])
def test_pictures_of_the_front_camera_come_in_order_of_time(tmp_path: Path, inside: bool) -> None:
    path = nuscenes(tmp_path / "drive", shades(5), "v1.0-mini" if inside else ".")
    frames, problems = load(path)
    assert shown(frames) == [0, 1, 2, 3, 4] and not problems
    assert [each.stamp_ns for each in frames] == [1_531_000_000_000_000_000 + 500_000_000 * i for i in range(5)]
    back, _ = load(path, Selection(instruction="find the red ball", topic="CAM_BACK", fps=1.0))
    assert [each.index for each in back] == [0, 2, 4] and shown(back)[0] > 15
    assert files_of(path) == sorted((path / ("v1.0-mini" if inside else ".")).glob("*.json"))
    _, problems = load(path, Selection())
    assert len(problems) == 5 and "give one with --instruction" in problems[0].reason


def test_pictures_that_are_missing_broken_or_of_no_sample_are_left_out(tmp_path: Path) -> None:
    path = nuscenes(tmp_path / "drive", shades(5))
    pictures = sorted((path / "samples" / "CAM_FRONT").glob("*.jpg"))
    pictures[0].unlink()
    pictures[1].write_bytes(pictures[1].read_bytes()[:200])
    table = path / "v1.0-mini" / "sample.json"
    table.write_text(json.dumps([row for row in json.loads(table.read_text()) if row["token"] != "sample-2"]))
    frames, problems = load(path)
    assert shown(frames) == [3, 4]
    words = {problem.index: problem.reason for problem in problems}
    assert f"{pictures[0]} cannot be read: No such file" in words[0]
    assert f"{pictures[1]}: " in words[1] and "does not decode" in words[1]
    assert "sample_token 'sample-2' is not in sample.json" in words[2]


def test_a_picture_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = nuscenes(tmp_path / "drive", shades(1))
    table = path / "v1.0-mini" / "sample_data.json"
    outside = tmp_path / "outside.jpg"
    (path / "samples" / "CAM_FRONT" / "1531000000000000.jpg").rename(outside)
    table.write_text(table.read_text().replace("samples/CAM_FRONT/1531000000000000.jpg", "../outside.jpg"))
    _, (problem,) = load(path)
    assert "filename '../outside.jpg' leads out of" in problem.reason and outside.exists()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("sensor", None, r"sensor.json cannot be read: No such file"),
        ("sensor", "[", r"sensor.json: Input data was truncated"),
        ("calibrated_sensor", '[{"token": "a"}]', r"calibrated_sensor.json: .*`sensor_token`"),
        ("sample_data", '[{"timestamp": "noon"}]', r"sample_data.json: .*"),
        ("sensor", "[]", "sensor.json has no camera CAM_FRONT; its cameras are"),
    ],
)
def test_what_is_wrong_with_a_table_is_one_sentence(tmp_path: Path, name: str, text: str | None, sentence: str) -> None:
    path = nuscenes(tmp_path / "drive", shades(1))
    table = path / "v1.0-mini" / f"{name}.json"
    table.unlink()
    if text is not None:
        table.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        open_questions(path, ASKED)


def test_two_versions_in_one_folder_are_refused(tmp_path: Path) -> None:
    nuscenes(tmp_path / "drive", shades(1))
    nuscenes(tmp_path / "drive", shades(1), "v1.0-test")
    with pytest.raises(ValueError, match=r"has several versions \(v1.0-mini, v1.0-test\); give a folder with one"):
        open_questions(tmp_path / "drive", ASKED)


def test_what_is_no_recording_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no sample_data.json"):
        NuScenes(tmp_path)
    for path in (tmp_path, tmp_path / "none", tmp_path / "none.mcap"):
        with pytest.raises(ValueError, match=str(path)):
            check_recording(path, "", "--topic")
    bag = bags.write(tmp_path / "bag", bags.camera(1))
    drive = nuscenes(tmp_path / "drive", shades(1))
    for path in (bag, next(bag.glob("*.mcap")), drive):
        check_recording(path, "", "--topic")
    with open_questions(bag, ASKED) as of_bag, open_questions(drive, ASKED) as of_drive:
        assert isinstance(of_bag, FrameSource) and isinstance(of_drive, DatasetQuestions)
