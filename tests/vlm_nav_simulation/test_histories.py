"""Histories: they end at the frame and hold together, and the memory is what they show."""

from __future__ import annotations

import math

import numpy as np

from speculation.language.search_memory import SearchMemory
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.histories import (
    made_up,
    random_pose,
    remembered_object,
    turn_to_remembered,
)
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.oracle import SEARCH_TURN, Reason
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.search_teacher import Searcher


def test_a_made_up_history_ends_at_the_frame_and_holds_together() -> None:
    scene = make_scene(3, Difficulty.MIDDLE, layout=Layout.TWO_ROOMS)
    searcher, rng = Searcher(scene), np.random.default_rng(0)
    lengths = set()
    for _ in range(80):
        pose = random_pose(scene, rng)
        history = made_up(scene, searcher, pose, rng)
        assert history.views[-1] == pose
        lengths.add(len(history.views))
        steps = zip(history.views[-2::-1], reversed(history.done), reversed(history.views), strict=False)
        for view, past, after in steps:
            if past.text == "forward large":
                break
            assert past.text.startswith(("turn", "forward"))
            turned = math.radians(45.0) if past == SEARCH_TURN else None
            assert turned is None or abs((after.yaw - view.yaw - turned + math.pi) % math.tau - math.pi) < 1e-9
    assert min(lengths) == 1 and max(lengths) > 8


def test_an_object_elsewhere_is_not_what_the_memory_has() -> None:
    scene = make_scene(3, Difficulty.MIDDLE)
    item, memory = scene.objects[0], SearchMemory()
    memory.look(item.x, item.y, 0.0)
    memory.found(0.0, 0.5)
    assert remembered_object(scene, memory, (0,)) == 0
    memory.found(0.0, 3.0)
    assert remembered_object(scene, memory, (0,)) is None
    behind = Pose(item.x, item.y, math.pi)
    decision = turn_to_remembered(behind, memory)
    assert decision is not None and decision.reason is Reason.RETURN and abs(decision.action.radians) > 0.7
    assert turn_to_remembered(Pose(item.x, item.y, 0.0), memory) is None
