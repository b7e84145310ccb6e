"""What latches, and who may clear it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.interlock import REMOTE_RELEASED_S, Interlock

CAUSES: dict[str, Callable[[Interlock], bool]] = {
    "e-stop": lambda lock: lock.e_stop(True),
    "taken by the remote control": lambda lock: lock.remote(10.0),
    "damped by the remote": lambda lock: lock.damped(),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_latches_until_it_is_over_and_reset(name: str) -> None:
    lock = Interlock()
    assert not lock.problem
    assert CAUSES[name](lock), "the robot is stopped"
    assert lock.problem == f"{name}; reset with ~/reset"
    assert not CAUSES[name](lock), "once"
    lock.e_stop(False)
    assert lock.problem
    assert lock.reset(10.0 + REMOTE_RELEASED_S) == "" and not lock.problem
    assert CAUSES[name](lock)


def test_a_cause_that_goes_on_is_not_reset() -> None:
    lock = Interlock()
    lock.e_stop(True)
    lock.remote(10.0)
    assert "still pressed" in lock.reset(99.0)
    lock.e_stop(False)
    assert "in use" in lock.reset(10.0 + REMOTE_RELEASED_S / 2)
    assert lock.problem == "e-stop and taken by the remote control; reset with ~/reset"


def test_an_e_stop_stops_what_a_person_took_before_and_leaves_alone_who_drives_it_away() -> None:
    lock = Interlock()
    lock.remote(10.0)
    assert not lock.stops(99.0)
    assert lock.e_stop(True)
    assert not lock.stops(10.0) and lock.stops(99.0)


@given(st.lists(st.sampled_from([*CAUSES, "release", "reset"]), max_size=20))
def test_nothing_but_a_reset_that_was_granted_clears_it(events: list[str]) -> None:
    lock, latched = Interlock(), False
    for event in events:
        if event == "release":
            lock.e_stop(False)
        elif event == "reset":
            latched = latched and bool(lock.reset(99.0))
        else:
            CAUSES[event](lock)
            latched = True
        assert bool(lock.problem) is latched
