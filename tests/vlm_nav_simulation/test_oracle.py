"""The oracle: a pure function, its rules, and that it finds things."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from speculation.language.prompts import STOP, ActionKind, ActionSize, NavigationAction
from vlm_nav_simulation.episode import MAX_STUCK, Outcome, oracle_policy, run_episode
from vlm_nav_simulation.geometry import NOSE, Obstacles, Pose
from vlm_nav_simulation.ground_truth import Sighting, bearing_and_distance, side_of
from vlm_nav_simulation.histories import random_pose
from vlm_nav_simulation.oracle import CIRCLE, REACHED_BEARING, SEARCH_TURN, Oracle, Reason
from vlm_nav_simulation.queries import Query
from vlm_nav_simulation.scene import REACHED_GAP, Difficulty, Scene, SceneObject, make_scene


def seen(scene: Scene, pose: Pose, visible: bool = True) -> list[Sighting]:
    """Sightings as if nothing hid anything."""
    result = []
    for item in scene.objects:
        bearing, distance = bearing_and_distance(pose, item)
        in_view = visible and abs(bearing) < math.radians(45)
        side = side_of(bearing)
        result.append(
            Sighting(item.index, item.colour, item.object_class, in_view, 99 * in_view, bearing, distance, side)
        )
    return result


def empty_room(*objects: SceneObject) -> Scene:
    """A large bare room that holds just these objects, in their order."""
    scene = make_scene(0, Difficulty.EASY)
    return replace(scene, half_x=3.0, half_y=3.0, boxes=(), objects=objects, target_index=0, start=Pose(0, 0, 0))


def item(index: int, x: float, y: float, object_class: str = "ball", colour: str = "red") -> SceneObject:
    return SceneObject(index, colour, object_class, x, y, 0.0, 1.0)


def test_decisions_depend_on_nothing_but_the_arguments() -> None:
    scene, rng = make_scene(1, Difficulty.HARD), np.random.default_rng(1)
    poses = [random_pose(scene, rng) for _ in range(12)]
    used, order = Oracle(scene), rng.permutation(len(poses))
    first = {i: [used.decide(poses[i], k, seen(scene, poses[i])) for k in range(len(scene.objects))] for i in order}
    for i, pose in enumerate(poses):
        fresh = Oracle(make_scene(1, Difficulty.HARD))
        assert first[i] == [fresh.decide(pose, k, seen(scene, pose)) for k in range(len(scene.objects))]


def test_after_a_circle_it_walks_on_twice_and_looks_around_again() -> None:
    oracle, pose = Oracle(empty_room(item(0, 2.0, 2.0))), Pose(0, 0, 0)
    done: list[NavigationAction] = []
    for _ in range(CIRCLE + 3):
        done.append(oracle.decide(pose, None, [], done).action)
    assert done[:CIRCLE] == [SEARCH_TURN] * CIRCLE
    assert [action.text for action in done[CIRCLE:]] == ["forward large", "forward large", "turn left large"]
    blocked = Oracle(empty_room(item(0, 0.8, 0.0)))
    assert blocked.decide(pose, None, [], done[:CIRCLE]).action == SEARCH_TURN, "no way ahead: it turns further"


def test_a_turn_is_not_undone_by_the_next_one() -> None:
    scene = empty_room(item(0, 2.0, -0.6))
    oracle, pose = Oracle(scene), Pose(0, 0, 0)
    right = oracle.decide(pose, 0, seen(scene, pose))
    assert right.action.kind is ActionKind.TURN_RIGHT
    left = NavigationAction(ActionKind.TURN_LEFT, ActionSize.SMALL)
    assert oracle.decide(pose, 0, seen(scene, pose), [left]).action.kind is ActionKind.FORWARD
    assert oracle.decide(pose, 0, seen(scene, pose), [left, right.action]) == right
    assert oracle.decide(pose, 0, seen(scene, pose), [SEARCH_TURN]) == right, "a search may have gone too far"
    far = Pose(0, 0, 0.25)
    assert oracle.decide(far, 0, seen(scene, far), [left]).action.kind is ActionKind.TURN_RIGHT, (
        "too far off to walk on"
    )


@pytest.mark.parametrize("seed", range(2))
def test_it_stops_exactly_where_the_target_is_near_and_ahead(seed: int) -> None:
    scene = make_scene(seed, Difficulty.MIDDLE)
    oracle, rng = Oracle(scene), np.random.default_rng(seed)
    stops = 0
    for _ in range(120):
        index = int(rng.integers(len(scene.objects)))
        goal, angle, gap = scene.objects[index], rng.uniform(-3, 3), rng.uniform(0.2, 1.0)
        away = goal.radius + gap + NOSE
        yaw = angle + math.pi + rng.uniform(-0.6, 0.6)
        pose = Pose(goal.x + away * math.cos(angle), goal.y + away * math.sin(angle), yaw)
        sightings = seen(scene, pose)
        sighting, decision = sightings[index], oracle.decide(pose, index, sightings)
        near = sighting.visible and sighting.distance <= REACHED_GAP and abs(sighting.bearing) <= REACHED_BEARING
        assert (decision.action == STOP) == near == (decision.reason is Reason.REACHED)
        stops += near
    assert stops > 5


def test_a_detour_names_what_is_in_the_way_and_passes_it() -> None:
    scene = empty_room(item(0, 2.6, 0.0), item(1, 1.2, 0.05, "mug", "blue"))
    oracle, pose = Oracle(scene), Pose(0, 0, 0)
    decision = oracle.decide(pose, 0, seen(scene, pose))
    assert (decision.reason, decision.blocker) == (Reason.DETOUR, "blue mug")
    assert decision.action.kind is ActionKind.TURN_RIGHT
    obstacles = Obstacles([], [thing.disc for thing in scene.objects])
    for _ in range(15):
        action = oracle.decide(pose, 0, seen(scene, pose)).action
        if action == STOP:
            break
        yaw, step = pose.yaw + action.radians, action.metres
        pose = Pose(pose.x + step * math.cos(yaw), pose.y + step * math.sin(yaw), yaw)
        assert obstacles.footprint_clearance(pose) > 0
    assert bearing_and_distance(pose, scene.objects[0])[1] <= REACHED_GAP


@pytest.mark.parametrize(("difficulty", "needed"), [(Difficulty.EASY, 5), (Difficulty.MIDDLE, 4), (Difficulty.HARD, 3)])
def test_it_finds_the_target(difficulty: Difficulty, needed: int) -> None:
    results = []
    for seed in range(500, 505):
        scene = make_scene(seed, difficulty)
        results.append(run_episode(scene, oracle_policy(scene), size=112))
    assert sum(result.success for result in results) >= needed
    assert all((result.outcome is Outcome.FOUND) == result.success for result in results)
    assert all(result.final_gap <= REACHED_GAP for result in results if result.success)


@pytest.mark.parametrize("near", [0, 1])
def test_of_two_objects_of_a_class_either_is_right(near: int) -> None:
    places = [(0.6, 0.0), (-1.5, 1.5)]
    room = make_scene(0, Difficulty.EASY)
    balls = tuple(item(i, *places[i != near], colour=("red", "blue")[i]) for i in range(2))
    scene = replace(room, objects=balls, target_index=0, start=Pose(0, 0, 0))
    any_ball = run_episode(scene, lambda frame, world: STOP, wanted=Query("", "ball").objects(scene))
    assert (any_ball.outcome, any_ball.success) == (Outcome.FOUND, True)
    red_ball = run_episode(scene, lambda frame, world: STOP, wanted=Query("red", "ball").objects(scene))
    assert red_ball.success is (near == 0)


def test_an_episode_ends_where_bumps_lead_nowhere_though_there_are_turns_between_them() -> None:
    ahead = NavigationAction(ActionKind.FORWARD, ActionSize.LARGE)
    actions = cycle([ahead, SEARCH_TURN, NavigationAction(ActionKind.TURN_RIGHT, ActionSize.LARGE)])
    stuck = run_episode(make_scene(3, Difficulty.EASY), lambda frame, world: next(actions), max_actions=90)
    assert stuck.outcome is Outcome.BLOCKED and stuck.collisions >= MAX_STUCK and stuck.path_length > 0.0
    assert len(stuck.actions) < 90
