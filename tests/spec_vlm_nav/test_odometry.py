"""Odometry that cannot be moved on is found at once and named; odometry that can be is left alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_vlm_nav.odometry import (
    FROZEN_S,
    LONGEST_S,
    RECOVERY_S,
    TOP_SPEED,
    OdometryCheck,
    OdometrySample,
    Rhythm,
    frames_problem,
)

PERIOD_S = 0.02


def sample(index: int, x: float = 0.0, yaw: float = 0.0, stamped: bool = True) -> OdometrySample:
    """Return the `index`-th message of a 50 Hz source."""
    turn = (0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2))
    return OdometrySample((x, 0.0, 0.3), turn, 1000.0 + index * PERIOD_S if stamped else 0.0, 50.0 + index * PERIOD_S)


def walked(count: int, **options: bool) -> OdometryCheck:
    """Return a check that has seen a robot walk at 0.5 m/s and turn at 0.7 rad/s, and found nothing wrong."""
    check = OdometryCheck()
    for index in range(count):
        pose = check.take(sample(index, 0.01 * index, 0.014 * index, **options))
        assert pose is not None and pose.x == 0.01 * index and not check.problem
    return check


NAN = math.nan
GOOD = sample(10, 0.1, 0.14)
FAULTS = {
    "x": (replace(GOOD, position=(NAN, 0.0, 0.3)), r"not finite \(x = nan\)"),
    "z": (replace(GOOD, position=(0.1, 0.0, -math.inf)), r"not finite \(z = -inf\)"),
    "yaw": (replace(GOOD, orientation=(0.0, 0.0, NAN, 1.0)), r"not finite \(qz = nan\)"),
    "no orientation": (replace(GOOD, orientation=(0.0, 0.0, 0.0, 0.0)), "norm 0, not 1"),
    "long orientation": (replace(GOOD, orientation=(0.0, 0.0, 1e300, 1.0)), "norm 1e\\+300, not 1"),
    "twist": (replace(GOOD, twist=(0.1, 0.0, NAN)), r"not finite \(wz = nan\)"),
    "stamp": (replace(GOOD, stamp=NAN), r"not finite \(stamp = nan\)"),
    "back": (replace(GOOD, stamp=999.0), "stamp went back 1.18 s"),
    "unset": (replace(GOOD, stamp=0.0), "stamp went back"),
    "jump": (sample(10, 3.2, 0.14), "jumped 3.11 m in 0.02 s"),
    "huge": (sample(10, 1e308, 0.14), "jumped 1e\\+308 m"),
    "turn": (sample(10, 0.1, 3.0), "jumped 165 degrees in 0.02 s"),
    "stamp far ahead": (replace(sample(10, 2.1, 0.14), stamp=9000.0), "jumped 2.01 m in 0.2 s"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_sample_is_named_at_once_and_trusted_again_when_it_has_been_sound_for_a_while(name: str) -> None:
    bad, sentence = FAULTS[name]
    check = walked(10)
    assert check.take(bad) is None
    assert re.search(sentence, check.problem), check.problem
    x = bad.position[0] if math.isfinite(bad.position[0]) else 0.1
    yaw = 3.0 if name == "turn" else 0.14
    stamp = bad.stamp if math.isfinite(bad.stamp) else GOOD.stamp
    sound = 0
    while check.take(replace(sample(11 + sound, x, yaw), stamp=stamp + (sound + 1) * PERIOD_S)) is None:
        sound += 1
        assert sound < 100 and check.problem
    assert sound * PERIOD_S == pytest.approx(RECOVERY_S, abs=2 * PERIOD_S)
    assert not check.problem


def test_a_source_that_is_bad_again_waits_anew_and_silence_is_no_recovery() -> None:
    check = walked(10)
    check.take(FAULTS["x"][0])
    for index in range(11, 30):
        assert check.take(sample(index)) is None
    check.take(replace(sample(30), position=(NAN, 0.0, 0.0)))
    assert all(check.take(sample(index)) is None for index in range(31, 50))
    check = walked(10)
    check.take(FAULTS["x"][0])
    assert check.take(sample(1000)) is None, "one message after 20 s of silence is no sound source"


def test_a_stamp_that_stands_still_is_a_frozen_source() -> None:
    check = walked(10)
    frozen = [replace(sample(10 + index, 0.1, 0.14), stamp=GOOD.stamp) for index in range(20)]
    believed = [check.take(each) is not None for each in frozen]
    assert believed.index(False) == math.ceil(FROZEN_S / PERIOD_S) and not any(believed[believed.index(False) :])
    assert "its source is frozen" in check.problem


def test_messages_that_were_held_up_and_come_at_once_are_no_jump() -> None:
    check = walked(10)
    for index in range(10, 20):
        late = replace(sample(index, 0.01 * index, 0.014 * index), arrived=50.4)
        assert check.take(late) is not None, check.problem


def test_a_robot_that_its_remote_drove_during_a_silence_has_not_jumped() -> None:
    check = walked(10)
    assert check.take(sample(10 + 500, 0.9 * TOP_SPEED * 10.0)) is not None


ANY = st.one_of(st.floats(), st.sampled_from([0.0, NAN, math.inf, -math.inf, 1e308, -1e308]))
SAMPLES = st.builds(
    OdometrySample,
    st.tuples(ANY, ANY, ANY),
    st.one_of(st.just((0.0, 0.0, 0.0, 1.0)), st.tuples(ANY, ANY, ANY, ANY)),
    ANY,
    st.floats(0.0, 100.0),
    st.one_of(st.none(), st.tuples(ANY, ANY, ANY)),
)


@settings(max_examples=100)
@given(st.lists(SAMPLES, max_size=8))
def test_whatever_arrives_gives_a_finite_pose_or_a_sentence(samples: list[OdometrySample]) -> None:
    check = OdometryCheck()
    for each in samples:
        pose = check.take(each)
        assert (pose is None) == bool(check.problem)
        assert pose is None or pose.finite


@pytest.mark.parametrize(
    ("gap", "limit", "named"),
    [(0.1, 0.2, False), (0.23, 0.345, False), (0.39, LONGEST_S, False), (0.5, LONGEST_S, True)],
)
@pytest.mark.parametrize("burst", [1, 4])
def test_the_silence_that_a_source_may_have_is_learned_from_how_it_comes(
    gap: float, limit: float, named: bool, burst: int
) -> None:
    rhythm = Rhythm(0.2)
    for index in range(60):
        for within in range(burst):
            rhythm.note(50.0 + index * gap + 0.001 * within)
    assert rhythm.limit == pytest.approx(limit, abs=0.01)
    assert bool(rhythm.problem) == named
    assert not named or f"odometry comes every {rhythm.gap:.2g} s: at least 4 messages a second" in rhythm.problem


@pytest.mark.parametrize(
    ("fixed", "body", "wrong"),
    [
        ("utlidar_odom", "robot0/base_link", False),
        ("map", "body", False),
        ("odom", "", True),
        ("odom", "odom", True),
        ("base_link", "odom", True),
        ("odom", "front_camera", True),
        ("front_camera_optical_frame", "base_link", True),
    ],
)
def test_frames_that_cannot_be_odometrys_are_named(fixed: str, body: str, wrong: bool) -> None:
    problem = frames_problem(fixed, body)
    assert bool(problem) == wrong
    assert not wrong or f"child_frame_id {body!r} in header.frame_id {fixed!r}, expected 'base_link' in" in problem
