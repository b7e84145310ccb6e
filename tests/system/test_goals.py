"""Goals that are refused, cancelled, replaced or limited, on one running chain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spec_vlm_nav.messages import HOLD
from tests.system.chain import CODES, FIND, Robot, finish, simulated
from tests.system.conftest import Lines, until


@pytest.fixture(scope="module")
def shared(turning_model: Path) -> Iterator[Robot]:
    """A robot that turns left for ever, for tests that leave it as they found it."""
    with simulated(turning_model, Lines()) as robot:
        yield robot


def test_a_goal_that_cannot_be_followed_is_refused_and_disturbs_nothing(shared: Robot) -> None:
    running = shared.observer.send(FIND)
    turns = shared.turns()
    until(lambda: shared.turns() > turns, "the goal runs")
    end = finish(shared, shared.observer.send("find the golden unicorn"))
    assert not end.succeeded and end.error_code == CODES.INVALID_INPUT
    assert "names no known object" in end.message and "bottle" in end.message
    empty = finish(shared, shared.observer.send("   "))
    assert empty.error_code == CODES.INVALID_INPUT
    assert shared.record.kinds[-1] != HOLD and running.wait(0.0) is None
    turns = shared.turns()
    until(lambda: shared.turns() > turns, "the goal before goes on")
    running.cancel()
    assert finish(shared, running).cancelled


def test_cancel_and_preemption_leave_a_standing_robot_and_have_codes_of_their_own(shared: Robot) -> None:
    turns = shared.turns()
    first = shared.observer.send(FIND)
    until(lambda: shared.turns() > turns, "robot turns")
    until(lambda: "instruction" in shared.observer.last, "the instruction is on its topic")
    assert shared.observer.last["instruction"].data == FIND
    second = shared.observer.send(FIND)
    replaced = finish(shared, first)
    assert not replaced.succeeded and replaced.error_code == CODES.PREEMPTED and "newer goal" in replaced.message
    before = shared.turns()
    until(lambda: shared.turns() > before, "the newer goal runs")
    second.cancel()
    end = finish(shared, second)
    assert end.cancelled and end.error_code == CODES.CANCELLED
    until(lambda: shared.stands and shared.record.kinds[-1] == HOLD, "the robot stands")


def test_time_and_number_of_actions_are_limits(shared: Robot) -> None:
    few = finish(shared, shared.observer.send(FIND, max_actions=2))
    assert (few.succeeded, few.actions) == (False, 2)
    late = finish(shared, shared.observer.send(FIND, time_allowance_s=2.0))
    assert late.error_code == CODES.TIMEOUT
    until(lambda: shared.stands, "the robot stands")
