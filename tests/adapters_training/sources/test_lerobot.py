"""LeRobot v3 data sets: frames of every storage in order, and a sentence for whatever is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters_training.sources import LeftOut, Shot
from adapters_training.sources import lerobot as reader
from adapters_training.sources.lerobot import LeRobotData
from speculation import images
from speculation.frames import decode_jpeg
from tests.datasets import CAMERA, FPS, lerobot, shade, shades

pytest.importorskip("pyarrow", reason="the extra `lerobot` is not installed")
pytest.importorskip("av", reason="the extra `lerobot` is not installed")

WALKS = [("find the red ball", shades(4)), ("find the blue chair", shades(3, 4)), ("find the red ball", shades(5, 7))]
COUNT = 12


def load(folder: Path, camera: str = "") -> tuple[list[tuple[Shot, int]], list[LeftOut]]:
    """Return the frames with what they show, and what is left out."""
    shown, problems = list[tuple[Shot, int]](), list[LeftOut]()
    for item in LeRobotData(folder, camera).shots():
        if isinstance(item, LeftOut):
            problems.append(item)
            continue
        try:
            shown.append((item, shade(decode_jpeg(item.jpeg()))))
        except ValueError as error:
            problems.append(LeftOut(str(error), item.index))
    return shown, problems


@pytest.mark.parametrize("stored", ["video", "bytes", "path"])
@pytest.mark.parametrize("per_file", [1, 2])
def test_every_frame_comes_in_order_with_its_task_and_time(tmp_path: Path, stored: str, per_file: int) -> None:
    folder = lerobot(tmp_path / "walks", WALKS, stored, per_file)
    data = LeRobotData(folder)
    assert (data.camera, data.cameras, data.count, data.seconds) == (CAMERA, [CAMERA], COUNT, COUNT / FPS)
    shown, problems = load(folder)
    assert not problems
    assert [picture for _, picture in shown] == list(range(COUNT)) == [shot.index for shot, _ in shown]
    assert [shot.instruction for shot, _ in shown] == [task for task, frames in WALKS for _ in frames]
    # Episodes follow one another; timestamps in the tables are float32.
    assert [shot.stamp_ns * 1e-9 for shot, _ in shown] == pytest.approx([index / FPS for index in range(COUNT)])
    assert load(folder, "front")[0][3][1] == 3


def test_a_video_may_be_asked_for_any_frame(tmp_path: Path) -> None:
    lerobot(tmp_path / "walks", [("go", shades(20))])
    video = reader._Video(str(tmp_path / "walks" / "videos" / CAMERA / "chunk-000" / "file-000.mp4"), 0.5 / FPS)
    for index in (7, 7, 19, 0, 3, 18, 2):
        assert shade(decode_jpeg(video.jpeg(index / FPS))) == index
    with pytest.raises(ValueError, match=r"no readable frame at 9.000 s: it ends before"):
        video.jpeg(9.0)
    assert shade(decode_jpeg(video.jpeg(0.5))) == 5
    video.close()


def change(folder: Path, **fields: Any) -> None:
    path = folder / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"codebase_version": "v2.1"}, r"info.json: codebase_version is 'v2.1' and v3.0 is read; convert"),
        ({"fps": 0}, "info.json: fps is 0.0; frames per second must be above 0"),
        ({"fps": "ten"}, r"info.json describes no LeRobot data set: .*\$.fps"),
        ({"features": {}}, "info.json has no feature of dtype image or video; its cameras are none"),
        ({"data_path": "{episode_chunk}"}, "info.json: data_path is '{episode_chunk}', which is no template"),
    ],
)
def test_what_is_wrong_with_the_description_is_one_sentence(
    tmp_path: Path, fields: dict[str, Any], sentence: str
) -> None:
    change(lerobot(tmp_path / "walks", WALKS[:1], "bytes"), **fields)
    with pytest.raises(ValueError, match=sentence):
        LeRobotData(tmp_path / "walks")


def test_a_missing_or_broken_file_is_named_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    folder = lerobot(tmp_path / "walks", WALKS, per_file=1)
    (folder / "data" / "chunk-000" / "file-001.parquet").unlink()
    shown, (problem,) = load(folder)
    assert [shot.index for shot, _ in shown] == [*range(4), *range(7, 12)]
    assert [picture for _, picture in shown] == [*range(4), *range(7, 12)]
    assert "file-001.parquet is missing; what was not read of episodes 1 to 1 is left out" in problem.reason
    (folder / "data" / "chunk-000" / "file-000.parquet").write_bytes(b"PAR1 and no more")
    shown, problems = load(folder)
    assert [shot.index for shot, _ in shown] == [*range(7, 12)] and "file-000.parquet cannot" in problems[0].reason


@pytest.mark.parametrize("damage", ["missing", "no video", "cut", "middle"])
def test_a_video_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    walks = [("find it", [np.random.default_rng(i).integers(0, 255, (48, 64, 3), np.uint8) for i in range(30)])]
    folder = lerobot(tmp_path / "walks", [*walks, ("find the red ball", shades(5))], per_file=1)
    path = folder / "videos" / CAMERA / "chunk-000" / "file-000.mp4"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "no video":
        path.write_bytes(b"no video at all" * 10)
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes(8192) + data[middle + 8192 :])
    shown, problems = load(folder)
    assert [(shot.index, picture) for shot, picture in shown if shot.index >= 30] == [(30 + i, i) for i in range(5)]
    assert all("\n" not in problem.reason for problem in problems)
    if damage != "middle":
        (problem,) = problems
        assert "file-000.mp4 cannot be read: " in problem.reason and len(shown) == 5
    else:
        # What a decoder makes of damaged parts is its own affair; frames before them are there.
        assert shown[0][0].index == 0


def test_a_picture_outside_of_the_data_set_or_larger_than_a_message_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lerobot(tmp_path / "walks", WALKS[:1], "path")
    data = LeRobotData(folder)
    (tmp_path / "secret.png").write_bytes((folder / "images" / "frame-000000.png").read_bytes())
    for stored in ({"bytes": None, "path": "../secret.png"}, {"bytes": None, "path": None}, None):
        with pytest.raises(ValueError, match=rf"{CAMERA} of a frame has neither bytes nor a path inside"):
            data._picture(stored)
    (folder / "images" / "frame-000001.png").unlink()
    (folder / "images" / "frame-000002.png").write_bytes(b"no picture")
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 100)
    _, problems = load(folder)
    assert [problem.index for problem in problems] == [0, 1, 2, 3]
    reasons = [problem.reason for problem in problems]
    assert "larger than the 100 that one message may carry" in reasons[0] and "No such file" in reasons[1]
    assert "format 'png', does not decode" in reasons[2]
