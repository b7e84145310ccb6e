"""The teacher of searches: it finds what is there, ends where nothing is, and knows only what was looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speculation.language.prompts import NOT_HERE, STOP, ActionKind, ActionSize, NavigationAction, Past
from speculation.language.search_memory import SearchMemory
from vlm_nav_simulation.episode import execute
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import observe
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.oracle import SEARCH_TURN, Reason
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.search_teacher import LARGE_TURNS, Searcher
from vlm_nav_simulation.world import World

LIMIT = 70
RIGHT_TURN = NavigationAction(ActionKind.TURN_RIGHT, ActionSize.LARGE)


def search(seed: int, layout: Layout, absent: bool = False) -> tuple[list[str], float]:
    """Run one search that remembers where it saw the object; return its actions and the share of the floor seen."""
    scene = make_scene(seed, Difficulty.MIDDLE, layout=layout)
    searcher, done, taken = Searcher(scene), list[Past](), list[str]()
    wanted = () if absent else (scene.target_index,)
    memory = SearchMemory()
    with World(scene, 224) as world:
        views = [world.pose]
        while len(taken) < LIMIT:
            sightings = observe(world)
            memory.look(*world.pose)
            last = scene.target_index if memory.last is not None else None
            action = searcher.decide(views, wanted, sightings, done, last).action
            taken.append(action.text)
            if not action.kind.moves:
                break
            seen = [sightings[index] for index in wanted if sightings[index].visible]
            if seen:
                memory.found(seen[0].bearing, seen[0].distance)
            else:
                memory.missed()
            execute(world, action)
            done.append(action)
            views.append(world.pose)
    return taken, searcher.covered(views)


@pytest.mark.parametrize("seed", [4, 5])
def test_a_way_out_of_view_is_found_by_turning_on(seed: int) -> None:
    scene = make_scene(seed, Difficulty.MIDDLE)
    searcher, rng, met = Searcher(scene), np.random.default_rng(seed), 0
    for _ in range(12):
        pose = Pose(float(rng.uniform(-1, 1)), float(rng.uniform(-1, 1)), float(rng.uniform(-math.pi, math.pi)))
        around = [Pose(pose.x, pose.y, pose.yaw + k * SEARCH_TURN.radians) for k in range(9)]
        for done in ([SEARCH_TURN], [RIGHT_TURN]):
            decision = searcher.decide(around, (), [], done)
            if decision.reason is Reason.EXPLORE and decision.action in LARGE_TURNS:
                assert decision.action == done[-1]
                met += 1
    assert met


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_what_is_there(layout: Layout, seed: int) -> None:
    actions, _ = search(seed, layout)
    assert actions[-1] == STOP.text


@pytest.mark.parametrize("layout", [Layout.ROOM, Layout.TWO_ROOMS])
def test_it_ends_a_search_for_what_is_not_there(layout: Layout) -> None:
    actions, covered = search(0, layout, absent=True)
    assert actions[-1] == NOT_HERE.text
    assert covered > 0.8


def test_it_decides_alike_wherever_an_object_stands_that_nobody_has_seen() -> None:
    scene = make_scene(0, Difficulty.MIDDLE, layout=Layout.HALLWAY)
    searcher = Searcher(scene)
    with World(scene, 112) as world:
        sightings = observe(world)
        hidden = [s.index for s in sightings if not s.visible]
        decisions = {searcher.decide([world.pose], (index,), sightings) for index in hidden}
        nowhere = searcher.decide([world.pose], (), sightings)
    assert decisions == {nowhere}
    assert nowhere.action == SEARCH_TURN
