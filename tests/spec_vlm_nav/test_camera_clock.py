"""Ages of frames from cameras whose clock is right, off, set anew, or behind a queue."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.camera_clock import OFF_S, SURE_FRAMES, CameraClock

PERIOD_S, NOW = 0.1, 1.7e9
DELAYS = st.lists(st.floats(0.0, 0.8), min_size=1, max_size=60)


def ages(clock: CameraClock, skew: float, delays: list[float], start: float = NOW) -> list[float]:
    """Ages of frames taken every `PERIOD_S` by a camera that is `skew` behind; a late frame holds up those after it."""
    arrivals = accumulate((start + n * PERIOD_S + late for n, late in enumerate(delays)), max)
    return [clock.age(start + n * PERIOD_S - skew, at) for n, at in enumerate(arrivals)]


def late(delays: list[float]) -> list[float]:
    taken = [n * PERIOD_S for n in range(len(delays))]
    arrived = accumulate((at + delay for at, delay in zip(taken, delays, strict=True)), max)
    return [at - before for at, before in zip(arrived, taken, strict=True)]


@given(st.floats(-1e6, 1e6), DELAYS)
def test_a_frame_is_never_older_than_it_is_and_only_the_least_delay_is_missing(
    skew: float, delays: list[float]
) -> None:
    true = late(delays)
    for n, (age, delay) in enumerate(zip(ages(CameraClock(), skew, delays), true, strict=True)):
        missing = min(true[: n + 1]) if not -1.0 < skew <= 0.0 else 0.0
        assert 0.0 <= age <= delay + max(skew if 0.0 < skew <= OFF_S else 0.0, 0.0) + 0.01
        assert age >= delay - max(missing, -skew if skew < 0.0 else 0.0, 0.0) - 0.01


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 5.0])
def test_a_frame_that_was_held_up_is_old_whatever_the_cameras_clock(skew: float) -> None:
    found = ages(CameraClock(), skew, [0.05] * 20 + [2.0])
    assert max(found[:20]) < 0.1 and found[20] == pytest.approx(1.95, abs=0.06)


def test_two_clocks_that_drift_apart_do_not_make_old_frames_in_a_day() -> None:
    clock = CameraClock()
    found = [clock.age(NOW - 5.0 + n * (1.0 - 5e-5), NOW + n) for n in range(0, 86400, 9)]
    assert max(found) < 0.01


def test_a_clock_that_is_set_back_is_estimated_anew() -> None:
    clock = CameraClock()
    ages(clock, 0.0, [0.05] * 20)
    assert max(ages(clock, 7200.0, [0.05] * 20, NOW + 5.0)) < 0.01
    assert clock.skew == pytest.approx(7200.05, abs=0.01)


def test_a_clock_that_is_off_is_worth_a_line_once_it_is_known_well() -> None:
    right, off = CameraClock(), CameraClock()
    ages(right, 0.4, [0.05] * 50)
    ages(off, -90.0, [0.05] * (SURE_FRAMES - 1))
    assert not right.is_off and right.skew == 0.0 and not off.is_off
    ages(off, -90.0, [0.05] * 2, NOW + 1.0)
    assert off.is_off
