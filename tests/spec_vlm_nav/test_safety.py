"""Limits, slew and watchdogs on given clocks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.safety import HARD_CAPS, ZERO, LastStop, Limits, SlewLimiter, Velocity, Watchdog, Watchdogs, clamp

LIMITS = Limits()
speeds = st.floats(-10.0, 10.0)
velocities = st.builds(Velocity, speeds, speeds, speeds)


@given(velocities)
def test_clamp_keeps_limits_and_leaves_what_is_within_alone(velocity: Velocity) -> None:
    safe = clamp(velocity, LIMITS)
    for got, asked, limit in (
        (safe.vx, velocity.vx, LIMITS.vx),
        (safe.vy, velocity.vy, LIMITS.vy),
        (safe.wz, velocity.wz, LIMITS.wz),
    ):
        assert abs(got) <= limit
        assert got == asked if abs(asked) <= limit else got == math.copysign(limit, asked)


@pytest.mark.parametrize(("field", "bad"), [("vx", math.nan), ("vy", math.inf), ("wz", -math.inf)])
def test_no_motion_is_made_of_nan_or_infinity(field: str, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        clamp(Velocity(**{field: bad}), LIMITS)
    with pytest.raises(ValueError, match="not finite"):
        SlewLimiter(LIMITS).step(Velocity(**{field: bad}), 0.05)


@pytest.mark.parametrize("field,cap", [*zip(("vx", "vy", "wz"), HARD_CAPS, strict=True)])
def test_limits_refuse_what_no_configuration_may_ask_for(field: str, cap: float) -> None:
    assert getattr(Limits(**{field: cap}), field) == cap
    for bad in (cap + 0.01, 0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"{field} .* is outside 0.05 to {cap:g}"):
            Limits(**{field: bad})


@given(st.lists(st.tuples(velocities, st.floats(0.0, 0.3)), max_size=30))
def test_slew_never_changes_faster_than_the_limits_nor_leaves_them(steps: list[tuple[Velocity, float]]) -> None:
    limiter, before = SlewLimiter(LIMITS), ZERO
    for wanted, dt in steps:
        after = limiter.step(wanted, dt)
        assert abs(after.vx - before.vx) <= LIMITS.deceleration * dt + 1e-9
        assert abs(after.wz - before.wz) <= LIMITS.turn_deceleration * dt + 1e-9
        if abs(after.vx) > abs(before.vx):
            assert abs(after.vx) - abs(before.vx) <= LIMITS.acceleration * dt + 1e-9
        assert clamp(after, LIMITS) == after
        before = after


@given(velocities, velocities)
def test_slew_arrives(first: Velocity, second: Velocity) -> None:
    limiter = SlewLimiter(LIMITS)
    for wanted in (first, second):
        for _ in range(40):
            limiter.step(wanted, 0.05)
        assert limiter.velocity == clamp(wanted, LIMITS)


def test_full_speed_is_braked_to_zero_within_a_quarter_second_at_20_hz() -> None:
    limiter = SlewLimiter(LIMITS)
    for _ in range(40):
        limiter.step(Velocity(LIMITS.vx, LIMITS.vy, LIMITS.wz), 0.05)
    for _ in range(5):
        limiter.step(ZERO, 0.05)
    assert limiter.velocity == ZERO


def test_slew_never_crosses_zero_in_one_step() -> None:
    limiter = SlewLimiter(LIMITS)
    for _ in range(40):
        limiter.step(Velocity(vx=0.5), 0.05)
    seen = [limiter.step(Velocity(vx=-0.5), 0.05).vx for _ in range(20)]
    assert 0.0 in seen and seen[-1] == -0.5


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf])
def test_watchdog_refuses_a_timeout_that_never_or_always_fires(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Watchdog(timeout)


def test_watchdogs_name_the_silent_and_know_when_the_next_is_due() -> None:
    dogs = Watchdogs(("a", "b"), 0.2)
    assert dogs.silent(0.0) == ("a", "b") and dogs.next_in(0.0) == math.inf
    dogs.feed("a", 1.0)
    assert dogs.silent(1.2) == ("b",) and dogs.silent(1.2001) == ("a", "b")
    assert dogs.next_in(1.05) == pytest.approx(0.15)
    dogs.feed("b", 1.1)
    assert dogs.next_in(1.15) == pytest.approx(0.05)
    assert dogs.next_in(1.25) == pytest.approx(0.05), "a is silent already, b is the next"
    assert dogs.next_in(1.4) == math.inf
    with pytest.raises(KeyError):
        dogs.feed("c", 1.0)


def test_a_bridge_that_falls_silent_is_stopped_for_as_long_as_the_robot_may_obey_it() -> None:
    watchdog = LastStop(0.2)
    assert not watchdog.due(0.0), "a bridge that never beat drives nothing"
    watchdog.on_bridge(True, 1.0)
    stops = [now for tick in range(3000) if watchdog.due(now := 1.0 + tick / 1000)]
    assert stops[0] == pytest.approx(1.201) and stops[-1] <= 2.2
    assert len(stops) == 20
    watchdog.on_bridge(True, 5.0)
    assert not watchdog.due(5.1) and watchdog.due(5.21)


def test_a_bridge_that_said_that_it_does_not_drive_may_fall_silent() -> None:
    """After an e-stop, a damped robot, one that lies down, or its deactivation: it sent its own stop."""
    watchdog = LastStop(0.2)
    watchdog.on_bridge(True, 1.0)
    watchdog.on_bridge(False, 1.02)
    assert not any(watchdog.due(1.0 + tick / 1000) for tick in range(3000))
    watchdog.on_bridge(True, 5.0)
    assert watchdog.due(5.21)


def test_a_robot_that_a_person_drives_is_not_stopped_when_the_bridge_falls_silent() -> None:
    watchdog = LastStop(0.2)
    watchdog.on_bridge(True, 1.0)
    watchdog.on_remote(1.1)
    assert not any(watchdog.due(1.0 + tick / 1000) for tick in range(3000))


@given(st.floats(0.0, 0.3))
def test_the_last_stop_is_never_waited_for_past_its_time(silence: float) -> None:
    watchdog = LastStop(0.2)
    watchdog.on_bridge(True, 0.0)
    woken = silence + watchdog.wait(silence)
    assert woken <= 0.2006 or silence > 0.15
    assert watchdog.wait(silence) > 0.0


def test_one_of_them_may_be_silent_for_longer_and_the_others_may_not() -> None:
    dogs = Watchdogs(("a", "b"), 0.2)
    dogs.feed("a", 1.0)
    dogs.feed("b", 1.0)
    dogs.allow("a", 0.35)
    assert dogs.next_in(1.1) == pytest.approx(0.1) and dogs.next_in(1.25) == pytest.approx(0.1)
    assert dogs.silent(1.3) == ("b",) and dogs.silent(1.36) == ("a", "b")
