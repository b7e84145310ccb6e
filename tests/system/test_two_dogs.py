"""Two simulated dogs in one ROS domain and one verifier, by launch arguments alone."""

from __future__ import annotations

from pathlib import Path

from spec_vlm_nav.runner import free_address
from tests.system.chain import CODES, FIND, finish, simulated
from tests.system.conftest import Lines, until


def test_two_dogs_share_a_verifier_and_nothing_else(turning_model: Path, lines: Lines) -> None:
    verifier, other = free_address(), Lines()
    with (
        simulated(turning_model, lines, namespace="dog1", verifier=verifier) as one,
        simulated(turning_model, other, namespace="dog2", verifier=verifier, start_verifier="false", seed="4") as two,
    ):
        assert not two.runner.alive("verifier")
        goal = one.observer.send(FIND, 1200.0)
        until(lambda: one.turns() > 1 and one.observer.speed > 0.1, "the first dog turns")
        assert two.turns() == 0 and two.stands
        second = two.observer.send(FIND, 1200.0)
        until(lambda: two.turns() > 1 and two.observer.speed > 0.1, "the second dog turns")
        goal.cancel()
        assert finish(one, goal).cancelled
        turned = two.turns()
        until(lambda: two.turns() > turned, "the second dog goes on")
        second.cancel()
        assert finish(two, second).error_code in (CODES.NONE, CODES.CANCELLED)
