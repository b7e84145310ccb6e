"""Pacing of a recorded bag, and what is read of one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.sources import LeftOut
from speculation.frames import decode_jpeg
from tests import bags
from tests.datasets import CAMERA, lerobot, shade, shades
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection
from vlm_nav_evaluation.bags.playback import Item, Pace, items, timed

SECOND = 1_000_000_000


def frames(*seconds: float) -> list[Item]:
    return [Item(round(second * SECOND), b"jpeg %g" % second, True) for second in seconds]


def test_a_bag_keeps_its_own_pace_from_its_first_message_on() -> None:
    odometry = Item(99 * SECOND, b"odometry", False)
    shown = list(timed(lambda: [odometry, *frames(100.0, 100.5, 102.0)], Pace()))
    assert [due for due, _ in shown] == [0.0, 1.0, 1.5, 3.0]
    assert shown[0][1] is odometry


def test_laps_follow_one_another_at_the_frames_own_distance() -> None:
    twice = [due for due, _ in timed(lambda: frames(5.0, 5.2, 5.4), Pace(laps=2))]
    assert twice == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    forever = timed(lambda: frames(5.0, 5.2), Pace(laps=0))
    assert [due for due, _ in islice(forever, 5)] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])


@settings(max_examples=40)
@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=12),
    st.floats(0.05, 20.0),
    st.integers(1, 3),
)
def test_nothing_is_ever_due_before_what_came_before_it(stamps: list[float], rate: float, laps: int) -> None:
    dues = [due for due, _ in timed(lambda: frames(*sorted(stamps)), Pace(rate=rate, laps=laps))]
    assert dues == sorted(dues) and len(dues) == laps * len(stamps) and dues[0] == 0.0


def test_a_jump_of_the_clock_is_not_waited_for() -> None:
    problems = list[LeftOut]()
    stamps = (0.0, 0.5, 1.7e9, 1.7e9 + 0.5, 1.7e9 + 200.0)
    dues = [due for due, _ in timed(lambda: frames(*stamps), Pace(), problems.append)]
    assert dues == pytest.approx([0.0, 0.5, 1.5, 2.0, 201.5])
    assert [problem.reason for problem in problems] == ["after 0.5 s nothing was recorded for 1700000000 s: left out"]


def test_a_bag_without_frames_is_a_sentence_and_no_endless_loop() -> None:
    with pytest.raises(ValueError, match="no readable camera frame after its first 0 s"):
        list(timed(lambda: [], Pace(laps=0)))
    with pytest.raises(ValueError, match="after its first 60 s; choose a smaller start"):
        list(timed(lambda: frames(0.0, 1.0), Pace(start=60.0)))


def test_what_cannot_be_read_is_left_out_as_in_a_replay(tmp_path: Path) -> None:
    messages = [("/cam", index * SECOND, bags.plain("rgb8", (10 * index, 0, 0))) for index in range(5)]
    messages[1] = ("/cam", SECOND, bags.raw(bytes(12), "16UC1", 2, 3, 6))
    messages[3] = ("/cam", 3 * SECOND, bags.raw(bytes(5), "8UC3", 2, 2, 6))
    path = bags.write(tmp_path / "bag", messages)
    (file,) = path.glob("*.mcap")
    selection = Selection(instruction="find the red ball")
    for recording in (path, file):
        problems = list[LeftOut]()
        shown = [(item.stamp_ns, item.payload) for item in items(recording, left_out=problems.append)]
        assert [stamp_ns for stamp_ns, _ in shown] == [0, 2 * SECOND, 4 * SECOND]
        assert [problem.index for problem in problems] == [1, 3]
        with FrameSource(recording, selection) as source:
            found = list(source)
        assert [problem for problem in found if isinstance(problem, LeftOut)] == problems
        assert [(each.stamp_ns, each.jpeg) for each in found if isinstance(each, BagFrame)] == shown


def test_of_a_bag_that_is_cut_the_beginning_is_played(tmp_path: Path) -> None:
    path = bags.write(tmp_path / "bag", bags.camera(30))
    (file,) = path.glob("*.mcap")
    whole = len(list(items(file)))
    middle = file.stat().st_size // 2
    data = file.read_bytes()
    flipped = bytes(255 - byte for byte in data[middle : middle + 4096])
    file.write_bytes(data[:middle] + flipped + data[middle + 4096 :])
    problems = list[LeftOut]()
    shown = len(list(items(path, left_out=problems.append)))
    assert shown < whole == 30 and "what comes after is left out" in problems[-1].reason


def test_data_sets_are_played_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `lerobot` is not installed")
    pytest.importorskip("av", reason="the extra `lerobot` is not installed")
    walks = lerobot(tmp_path / "walks", (("stroll", shades(3)), ("stroll on", shades(2, 3)), ("rest", shades(2, 5))))
    assert [shade(decode_jpeg(item.payload)) for item in items(walks)] == list(range(7))
    (walks / "videos" / CAMERA / "chunk-000" / "file-001.mp4").unlink()
    problems = list[LeftOut]()
    assert len(list(items(walks, left_out=problems.append))) == 5 and problems
    with pytest.raises(ValueError, match="back"):
        next(items(walks, "back"))


def test_topics_are_found_by_their_type_or_named(tmp_path: Path) -> None:
    images = [bags.plain("rgb8", (10 * index, 0, 0)) for index in range(3)]
    topics = ("/front/rgb", "/rear/rgb", "/front/rgb")
    messages = [(topic, index * SECOND, image) for index, (topic, image) in enumerate(zip(topics, images, strict=True))]
    bags.write(tmp_path / "bag", [*messages, ("/utlidar/odom", 3 * SECOND, bags.odometry(0))])
    found = list(items(tmp_path / "bag", "front/rgb"))
    assert [(item.is_frame, item.stamp_ns) for item in found] == [(True, 0), (True, 2 * SECOND), (False, 3 * SECOND)]
    assert [item.stamp_ns for item in items(tmp_path / "bag", "rear/rgb", "/none")] == [SECOND]
    with pytest.raises(ValueError, match="has several camera topics: .*; choose one with --camera-topic"):
        list(items(tmp_path / "bag"))
    with pytest.raises(ValueError, match="is no bag"):
        next(items(tmp_path))
