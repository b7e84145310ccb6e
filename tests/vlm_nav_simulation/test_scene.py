"""Rooms keep what their difficulty promises, seed by seed."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from speculation.language.prompts import Target
from vlm_nav_simulation.ground_truth import bearing_and_distance
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.paths import SAFE_RADIUS
from vlm_nav_simulation.scene import Difficulty, Scene, StartHeading, make_scene

SEEDS = range(40, 52)


@pytest.mark.parametrize("difficulty", Difficulty)
def test_equal_seeds_give_equal_rooms_and_other_seeds_do_not(difficulty: Difficulty) -> None:
    rooms = [make_scene(seed, difficulty) for seed in (3, 3, 4)]
    assert rooms[0] == rooms[1]
    assert rooms[0] != rooms[2]


def start_distance(scene: Scene) -> float:
    goal = scene.objects[scene.target_index]
    return math.hypot(goal.x - scene.start.x, goal.y - scene.start.y) - goal.radius


@pytest.mark.parametrize("difficulty", Difficulty)
def test_every_room_keeps_the_definition_of_its_level(difficulty: Difficulty) -> None:
    level = difficulty.value
    for seed in SEEDS:
        scene = make_scene(seed, difficulty)
        assert level.distractors[0] <= len(scene.objects) - 1 <= level.distractors[1]
        assert level.start_distance[0] - 1e-9 <= start_distance(scene) <= level.start_distance[1] + 1e-9
        assert (
            level.room[0] <= 2 * min(scene.half_x, scene.half_y) <= 2 * max(scene.half_x, scene.half_y) <= level.room[1]
        )
        bearing, _ = bearing_and_distance(scene.start, scene.objects[scene.target_index])
        if level.heading is StartHeading.TARGET_IN_VIEW:
            assert abs(bearing) <= math.radians(31)
        if level.heading is StartHeading.TARGET_OUT_OF_VIEW:
            assert abs(bearing) >= math.radians(75)
        assert len({item.target for item in scene.objects}) == len(scene.objects)
        for one, other in combinations(scene.objects, 2):
            assert math.hypot(one.x - other.x, one.y - other.y) > one.radius + other.radius
        assert scene.obstacles.clearance(np.array([scene.start[:2]]))[0] >= SAFE_RADIUS


def test_distractors_look_alike() -> None:
    for seed in SEEDS:
        scene = make_scene(seed, Difficulty.MIDDLE, Target("silver", "bottle"))
        others = [item.target for item in scene.objects if item.index != scene.target_index]
        assert scene.target == Target("silver", "bottle")
        assert any(other.object_class == "bottle" for other in others)
        assert any(other.colour == "silver" for other in others)


def test_an_unknown_target_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"'pink'.*{', '.join(COLOURS)}"):
        make_scene(0, Difficulty.EASY, Target("pink", "bottle"))
    with pytest.raises(ValueError, match=f"'sword'.*{', '.join(CLASSES)}"):
        make_scene(0, Difficulty.EASY, Target("red", "sword"))
