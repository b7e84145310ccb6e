"""Two rooms and a hallway: walls with doorways wide enough, a target beyond one, and an oracle that goes there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlm_nav_simulation.episode import oracle_policy, run_episode
from vlm_nav_simulation.geometry import TURN_RADIUS, Obstacles
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.scene import MAX_SEED, REACHED_GAP, Difficulty, make_scene

DIVIDED = (Layout.TWO_ROOMS, Layout.HALLWAY)


@pytest.mark.parametrize("layout", DIVIDED)
@pytest.mark.parametrize("difficulty", Difficulty)
def test_start_and_target_are_in_different_areas_that_a_robot_can_walk_between(
    layout: Layout, difficulty: Difficulty
) -> None:
    for seed in range(60, 62):
        scene = make_scene(seed, difficulty, layout=layout)
        assert scene == make_scene(seed, difficulty, layout=layout)
        assert scene.layout is layout
        goal = scene.objects[scene.target_index]
        start = scene.plan.areas[scene.plan.start]
        assert start.holds(*scene.start[:2])
        assert not start.holds(goal.x, goal.y)
        reachable = scene.grid.reachable(*scene.start[:2])
        assert all((scene.goals(item.index) & reachable).any() for item in scene.objects)
        without_doors = Obstacles([*scene.boxes, *scene.plan.doorways], [])
        assert without_doors.clearance(np.array([[door.x, door.y] for door in scene.plan.doorways])).max() < 0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(DIVIDED))
def test_doorways_stay_clear_and_wide_enough_to_turn_in(seed: int, layout: Layout) -> None:
    scene = make_scene(seed, Difficulty.HARD, layout=layout)
    for door in scene.plan.doorways:
        assert 2 * max(door.half_x, door.half_y) > 2 * TURN_RADIUS
        assert scene.obstacles.clearance(np.array([[door.x, door.y]]))[0] > TURN_RADIUS


@pytest.mark.parametrize("layout", DIVIDED)
def test_the_oracle_finds_targets_beyond_doorways(layout: Layout) -> None:
    results = []
    for seed in range(700, 702):
        scene = make_scene(seed, Difficulty.HARD, layout=layout)
        results.append(run_episode(scene, oracle_policy(scene), size=112))
    assert any(result.success for result in results)
    assert all(result.final_gap <= REACHED_GAP for result in results if result.success)


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_seeds_are_bounded(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed {seed} is outside 0..{MAX_SEED}"):
        make_scene(seed, Difficulty.EASY)
