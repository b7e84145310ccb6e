"""The simulated robot on a clock of the test's own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from spec_vlm_nav.guard import Guard, GuardSettings
from spec_vlm_nav.robots.go2 import SportApi
from spec_vlm_nav.safety import Velocity
from spec_vlm_nav.simulated_go2 import SCAN_ANGLES, SimulatedGo2, scene_of

AHEAD = '{"x": 0.4, "y": 0.0, "z": 0.0}'


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def robot() -> Iterator[tuple[SimulatedGo2, Clock]]:
    clock = Clock()
    made = SimulatedGo2(scene_of(3, "easy", "silver bottle"), clock, 112)
    yield made, clock
    made.close()


def pass_time(robot: SimulatedGo2, clock: Clock, seconds: float) -> None:
    for _ in range(round(seconds / 0.02)):
        clock.now += 0.02
        robot.advance()


def stand(robot: SimulatedGo2) -> None:
    assert robot.request(SportApi.STAND_UP, "{}") == 0
    assert robot.request(SportApi.BALANCE_STAND, "{}") == 0


def test_a_lying_robot_refuses_to_walk_and_a_balanced_one_walks_for_a_second(robot: tuple[SimulatedGo2, Clock]) -> None:
    go2, clock = robot
    assert go2.request(SportApi.MOVE, AHEAD) == 4206
    stand(go2)
    before = go2.pose
    assert go2.request(SportApi.MOVE, AHEAD) == 0
    pass_time(go2, clock, 0.5)
    assert go2.velocity.x == pytest.approx(0.4, abs=1e-6)
    pass_time(go2, clock, 2.0)
    assert go2.velocity == (0.0, 0.0, 0.0)
    assert math.dist(before[:2], go2.pose[:2]) == pytest.approx(0.4, abs=0.02)
    assert go2.truth().path_length == pytest.approx(0.4, abs=0.02)


def test_a_wall_stops_it_counts_once_and_odometry_says_so(robot: tuple[SimulatedGo2, Clock]) -> None:
    go2, clock = robot
    stand(go2)
    for _ in range(60):
        go2.request(SportApi.MOVE, '{"x": 1.0, "y": 0.0, "z": 0.0}')
        pass_time(go2, clock, 0.2)
    assert go2.velocity.x < 0.05
    assert go2.truth().collisions == 1


def test_its_state_and_its_scan_are_those_of_the_world(robot: tuple[SimulatedGo2, Clock]) -> None:
    go2, clock = robot
    assert go2.state().error_code == 1004
    stand(go2)
    assert go2.state().error_code == 1013
    ahead = SCAN_ANGLES.index(0.0)
    before = go2.scan()
    assert all(0.0 < distance < 12.0 for distance in before), "a room has walls all around"
    go2.request(SportApi.MOVE, AHEAD)
    pass_time(go2, clock, 0.5)
    assert go2.state().error_code == 1015
    assert before[ahead] - go2.scan()[ahead] == pytest.approx(0.2, abs=0.02)
    go2.request(1001, "{}")
    assert go2.state().error_code == 1001


def test_a_simulator_that_was_held_up_does_not_jump(robot: tuple[SimulatedGo2, Clock]) -> None:
    go2, clock = robot
    stand(go2)
    go2.request(SportApi.MOVE, AHEAD)
    before = go2.pose
    clock.now += 0.9
    go2.advance()
    assert math.dist(before[:2], go2.pose[:2]) <= 0.4 * 0.1 + 1e-6


@pytest.mark.parametrize("seed", range(0, 16, 3))
def test_the_guard_stops_it_before_whatever_stands_ahead(seed: int) -> None:
    clock = Clock()
    go2 = SimulatedGo2(scene_of(seed, "middle", ""), clock, 28)
    guard = Guard(GuardSettings(guard="scan", guard_points=1))
    stand(go2)
    angles = np.asarray(SCAN_ANGLES)
    for _ in range(100):
        ranges = np.asarray(go2.scan())
        guard.see(np.stack([ranges * np.cos(angles), ranges * np.sin(angles), 0.0 * angles], axis=1), clock.now)
        limited = guard.limit(Velocity(0.5, 0.0, 0.0), clock.now)
        go2.request(SportApi.MOVE, json.dumps({"x": limited.vx, "y": 0.0, "z": 0.0}))
        pass_time(go2, clock, 0.2)
    assert limited.vx == 0.0 and go2.velocity == (0.0, 0.0, 0.0)
    assert go2.truth().collisions == 0 and go2.truth().path_length > 0.1
    go2.close()
