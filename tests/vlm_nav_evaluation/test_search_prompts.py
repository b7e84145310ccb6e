"""What a robot would be asked on an oracle's walk."""

from __future__ import annotations

import math
from dataclasses import replace

from speculation.language.prompts import ActionKind, ActionSize, Blocked, NavigationAction, ResponseOrder
from vlm_nav_evaluation.search_prompts import SearchPrompts
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import Side, observe
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.world import World


def test_prompts_of_form_2_have_what_was_searched_and_blocked() -> None:
    scene = make_scene(1_000_004, Difficulty.EASY)
    name = scene.target.text
    with World(scene, 56) as world:
        seen = replace(observe(world)[scene.target_index], visible=True, side=Side.LEFT, distance=2.1)
    gone = replace(seen, visible=False)
    ahead = NavigationAction(ActionKind.FORWARD, ActionSize.LARGE)
    here, behind = Pose(0.0, 0.0, 0.0), Pose(0.0, 0.0, math.pi)
    left = Pose(0.0, 0.0, math.radians(33.0))
    prompts = SearchPrompts.of_target(scene.target, form=2)
    asked = []
    for pose, sighting, past in (
        (here, seen, ()),
        (behind, gone, (Blocked(ahead),)),
        (left, gone, ()),
        (here, seen, ()),
    ):
        asked.append(prompts.ask(pose, past))
        prompts.see(sighting)
    assert asked == [
        f"find the {name}\nSeen: here 1/8",
        f"find the {name}\nDone: forward large blocked\nSeen: here 2/8\nLast seen: behind right 2 m",
        f"find the {name}\nSeen: here 3/8\nLast seen: ahead 2 m",
        f"find the {name}\nSeen: here 3/8",
    ]
    plain = SearchPrompts.of_target(scene.target, ResponseOrder.ACTION_FIRST)
    assert plain.ask(behind, (Blocked(ahead),)) == f"find the {name}\nDone: forward large\nAction first"
