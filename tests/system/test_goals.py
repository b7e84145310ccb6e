"""One running chain: goals refused, cancelled, replaced or limited; every process killed at the wrong moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spec_vlm_nav.messages import CLOUD_VERIFIED, EDGE_ONLY, HOLD
from spec_vlm_nav.robots.go2 import SportApi
from tests.system.chain import CODES, FIND, Robot, finish, simulated
from tests.system.conftest import Lines, Relay, until


@pytest.fixture(scope="module")
def chain(turning_model: Path, relay: Relay) -> Iterator[Robot]:
    """A robot that turns left for ever."""
    with simulated(turning_model, relay) as robot:
        yield robot


@pytest.fixture
def turning(chain: Robot, relay: Relay, lines: Lines) -> Robot:
    """The robot that turns left for ever; what the test before has ended runs again."""
    relay.lines = lines
    chain.repair()
    chain.record.clear()
    return chain


def test_cancel_and_preemption_leave_a_standing_robot_and_have_codes_of_their_own(turning: Robot) -> None:
    turns = turning.turns()
    first = turning.send()
    until(lambda: turning.turns() > turns, "robot turns")
    until(lambda: "instruction" in turning.observer.last, "the instruction is on its topic")
    assert turning.observer.last["instruction"].data == FIND
    second = turning.send()
    replaced = finish(turning, first)
    assert not replaced.succeeded and replaced.error_code == CODES.PREEMPTED and "newer goal" in replaced.message
    before = turning.turns()
    until(lambda: turning.turns() > before, "the newer goal runs")
    second.cancel()
    end = finish(turning, second)
    assert end.cancelled and end.error_code == CODES.CANCELLED
    until(lambda: turning.stands and turning.record.kinds[-1] == HOLD, "the robot stands")


def test_while_the_verifier_is_away_the_draft_model_drives_slowly_and_the_goal_goes_on(turning: Robot) -> None:
    goal = turning.send()
    until(lambda: turning.turns() >= 2, "robot turns")
    turning.runner.kill("verifier")

    def decides_alone() -> bool:
        action = turning.observer.last["navigation_action"]
        return bool(action.source == EDGE_ONLY and action.speed_scale == 0.5)

    until(decides_alone, "the draft model decides alone, for half the speed")
    assert goal.wait(0.0) is None
    turning.runner.start("verifier")
    until(lambda: turning.observer.last["navigation_action"].source == CLOUD_VERIFIED, "the verifier decides")
    before = turning.turns()
    until(lambda: turning.turns() > before, "the goal goes on")
    goal.cancel()
    assert finish(turning, goal).cancelled


@pytest.mark.parametrize("victim", ["action_executor", "vlm_nav"])
def test_a_node_that_dies_in_mid_motion_leaves_a_standing_robot(turning: Robot, victim: str) -> None:
    goal = turning.send()
    until(lambda: turning.observer.speed > 0.2, "robot turns")
    turning.runner.kill(victim)
    if victim == "action_executor":
        until(lambda: turning.record.apis[-1] == SportApi.STOP_MOVE, "the bridge stops the robot")
    until(lambda: turning.stands, "the robot stands")
    if victim == "vlm_nav":
        until(lambda: "vlm_nav silent" in turning.observer.last["action_status"].message, "the executor says why")
    else:
        until(lambda: turning.record.said("action_executor is silent"), "navigation says why")
        goal.cancel()
        assert finish(turning, goal).cancelled
