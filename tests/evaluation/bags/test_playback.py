"""Pacing of a recorded bag, and what is read of one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.bags.playback import Item, Pace, items, timed
from tests import bags

SECOND = 1_000_000_000


def frames(*seconds: float) -> list[Item]:
    return [Item(round(second * SECOND), b"jpeg %g" % second, True) for second in seconds]


def test_a_bag_keeps_its_own_pace_from_its_first_message_on() -> None:
    odometry = Item(99 * SECOND, b"odometry", False)
    shown = list(timed(lambda: [odometry, *frames(100.0, 100.5, 102.0)], Pace()))
    assert [due for due, _ in shown] == [0.0, 1.0, 1.5, 3.0]
    assert shown[0][1] is odometry


def test_rate_and_start_change_when_and_from_where() -> None:
    shown = list(timed(lambda: frames(10.0, 11.0, 12.0, 13.0), Pace(rate=2.0, start=1.5)))
    assert [(due, item.payload) for due, item in shown] == [(0.25, b"jpeg 12"), (0.75, b"jpeg 13")]


def test_laps_follow_one_another_at_the_frames_own_distance() -> None:
    twice = [due for due, _ in timed(lambda: frames(5.0, 5.2, 5.4), Pace(laps=2))]
    assert twice == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    forever = timed(lambda: frames(5.0, 5.2), Pace(laps=0))
    assert [due for due, _ in islice(forever, 5)] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=12),
    st.floats(0.05, 20.0),
    st.integers(1, 3),
)
def test_nothing_is_ever_due_before_what_came_before_it(stamps: list[float], rate: float, laps: int) -> None:
    dues = [due for due, _ in timed(lambda: frames(*sorted(stamps)), Pace(rate=rate, laps=laps))]
    assert dues == sorted(dues) and len(dues) == laps * len(stamps) and dues[0] == 0.0


def test_a_bag_without_frames_is_a_sentence_and_no_endless_loop() -> None:
    with pytest.raises(ValueError, match="no camera frame after its first 0 s"):
        list(timed(lambda: [], Pace(laps=0)))
    with pytest.raises(ValueError, match="after its first 60 s; choose a smaller start"):
        list(timed(lambda: frames(0.0, 1.0), Pace(start=60.0)))


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": float("nan")}, {"start": -1.0}, {"laps": -1}])
def test_a_pace_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is outside"):
        Pace(**wrong)


def test_topics_are_found_by_their_type_or_named(tmp_path: Path) -> None:
    images = [bags.plain("rgb8", (10 * index, 0, 0)) for index in range(3)]
    topics = ("/front/rgb", "/rear/rgb", "/front/rgb")
    messages = [(topic, index * SECOND, image) for index, (topic, image) in enumerate(zip(topics, images, strict=True))]
    bags.write(tmp_path / "bag", [*messages, ("/utlidar/odom", 3 * SECOND, bags.odometry(0))])
    found = list(items(tmp_path / "bag"))
    assert [(item.is_frame, item.stamp_ns) for item in found] == [(True, 0), (True, 2 * SECOND), (False, 3 * SECOND)]
    assert [item.stamp_ns for item in items(tmp_path / "bag", "rear/rgb", "/none")] == [SECOND]
    with pytest.raises(ValueError, match=r"has no images on /none; its camera topics are /front/rgb, /rear/rgb$"):
        list(items(tmp_path / "bag", "/none"))
    with pytest.raises(ValueError, match="is no bag"):
        next(items(tmp_path))
