"""Whether a robot confirms, stands ready, and stands still. The rest is in test_bridge.py."""

from __future__ import annotations

import itertools
import math

import pytest

from spec_vlm_nav.robot import Answer, Confirmed, Posture
from spec_vlm_nav.robots import robot_of
from spec_vlm_nav.robots.go2 import SportApi
from spec_vlm_nav.stand_detection import STAND_RETRY_S, STATE_WAIT_S, STILL, StandUp, Stillness


def test_it_waits_a_little_for_the_state_before_it_asks_a_robot_to_stand_up() -> None:
    standing = StandUp(robot_of("go2"), 0.0, itertools.count().__next__, 10.0)
    assert standing.due(Posture.UNKNOWN, 10.0) is None
    request = standing.due(Posture.UNKNOWN, 10.0 + STATE_WAIT_S)
    assert request is not None and request.api_id == SportApi.STAND_UP
    late = StandUp(robot_of("go2"), 0.0, itertools.count().__next__, 10.0)
    assert late.due(Posture.UNKNOWN, 10.5) is None
    request = late.due(Posture.STANDS, 11.0)
    assert request is not None and request.api_id == SportApi.BALANCE_STAND


def test_a_refusal_is_followed_by_a_pause() -> None:
    standing = StandUp(robot_of("go2"), 0.0, itertools.count().__next__, -math.inf)
    first = standing.due(Posture.DOWN, 10.0)
    assert first is not None
    standing.answered(Answer(first.identity, "it must stand first", unready=True))
    assert standing.due(Posture.DOWN, 10.1) is None
    assert standing.due(Posture.DOWN, 10.1 + STAND_RETRY_S) is not None


def test_a_robot_stands_still_when_all_that_show_its_speed_say_so_afterwards() -> None:
    stillness = Stillness()
    assert stillness.since(99.0) and not stillness.moving, "nothing shows its speed"
    stillness.note("odometry", STILL, 10.0)
    stillness.note("state", 0.0, 11.0)
    assert stillness.since(9.0) and not stillness.since(10.0)
    stillness.note("odometry", 0.2, 12.0)
    assert stillness.moving == "odometry shows 0.20" and not stillness.since(9.0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_speed_that_is_no_number_shows_no_robot_that_stands(wrong: float) -> None:
    stillness = Stillness()
    stillness.note("odometry", wrong, 10.0)
    assert stillness.moving and not stillness.since(9.0)


def test_a_request_is_repeated_until_the_robot_confirms_one_of_its_identities() -> None:
    identities = iter(range(10, 100))
    request = Confirmed(lambda identity: identity, lambda: next(identities), 1.0)
    first = request.due(0.0)
    assert first == 10
    assert request.due(0.5) is None
    assert request.due(1.0) == 11
    request.answered(Answer(99))
    request.answered(Answer(first, "it must stand first"))
    assert not request.done
    request.answered(Answer(first))
    assert request.done and request.due(9.0) is None
    request.reopen()
    assert request.due(9.5) is not None
