"""Runs a policy in a scene until it stops, and scores it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from speculation.language.prompts import ActionKind, NavigationAction
from vlm_nav_simulation.camera import Image
from vlm_nav_simulation.geometry import GO2_MOUNT, CameraMount, Pose
from vlm_nav_simulation.ground_truth import observe
from vlm_nav_simulation.oracle import Oracle
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.search_teacher import Searcher
from vlm_nav_simulation.world import World

SUCCESS_GAP = 1.0
"""Metres from the nose to the target's surface within which a stop, with the target in view, is a success."""
MAX_ACTIONS = 40
MAX_BLOCKED = 5
"""Blocked actions in a row that end an episode, as they end a robot's goal."""
MAX_STUCK = 10
"""Blocked actions, without one between them that led ahead, that end it too."""

Policy = Callable[[Image, World], NavigationAction | None]
"""Frame and world in, action out; None where the policy gives no action, which ends the episode."""


class Outcome(str, Enum):
    """How an episode ended."""

    FOUND = "found"
    STOPPED_AWAY = "stopped away from the target"
    OUT_OF_ACTIONS = "ran out of actions"
    NO_ACTION = "gave no readable action"
    NOT_FOUND = "said that it is not here"
    BLOCKED = "was blocked too often"


@dataclass(frozen=True)
class EpisodeResult:
    """An episode's score. `path_length` is metres walked, `collisions` the actions that something cut short.

    `final_gap` is the distance to the nearest object that is right, metres; infinite where there is none.
    """

    success: bool
    outcome: Outcome
    actions: tuple[NavigationAction, ...]
    poses: tuple[Pose, ...]
    path_length: float
    collisions: int
    final_gap: float


def execute(world: World, action: NavigationAction) -> bool:
    """Carry out an action in one go; return whether something blocked it. The robot stands still after it.

    `world.blocked` keeps that for a policy that lists what it did.
    """
    world.blocked = world.displace(action.metres, action.radians)
    return world.blocked


def run_episode(
    scene: Scene,
    policy: Policy,
    max_actions: int = MAX_ACTIONS,
    size: int = 224,
    wanted: Sequence[int] | None = None,
    mount: CameraMount = GO2_MOUNT,
) -> EpisodeResult:
    """Run `policy` from the scene's start until it ends the search, gives no action, is blocked MAX_BLOCKED times in a
    row or MAX_STUCK times without a way ahead, or `max_actions` are used up.

    `wanted` are the objects any of which is right (None: the scene's target); where there is none, to say so is the
    success.
    """
    actions: list[NavigationAction] = []
    poses, length, collisions, in_a_row, stuck = [scene.start], 0.0, 0, 0, 0
    wanted = (scene.target_index,) if wanted is None else wanted
    with World(scene, size, mount=mount) as world:
        outcome = Outcome.OUT_OF_ACTIONS
        while len(actions) < max_actions:
            action = policy(world.render(), world)
            if action is None:
                outcome = Outcome.NO_ACTION
                break
            actions.append(action)
            if action.kind is ActionKind.STOP:
                sightings = observe(world)
                near = any(sightings[i].visible and sightings[i].distance <= SUCCESS_GAP for i in wanted)
                outcome = Outcome.FOUND if near else Outcome.STOPPED_AWAY
                break
            if action.kind is ActionKind.NOT_HERE:
                outcome = Outcome.NOT_FOUND
                break
            blocked = execute(world, action)
            collisions, in_a_row = collisions + blocked, in_a_row + 1 if blocked else 0
            stuck = stuck + blocked if blocked or not action.metres else 0
            length += math.dist(poses[-1][:2], world.pose[:2])
            poses.append(world.pose)
            if in_a_row >= MAX_BLOCKED or stuck >= MAX_STUCK:
                outcome = Outcome.BLOCKED
                break
        sightings = observe(world)
        gap = min((sightings[i].distance for i in wanted), default=math.inf)
    success = outcome is (Outcome.FOUND if wanted else Outcome.NOT_FOUND)
    return EpisodeResult(success, outcome, tuple(actions), tuple(poses), length, collisions, gap)


def oracle_policy(scene: Scene, wanted: Sequence[int] | None = None) -> Policy:
    """Return the oracle as a policy for one run of `run_episode`: it remembers what it did.

    It goes to the scene's target, or to the first of `wanted` where that one is not right. For what is not there it
    searches as `vlm_nav_simulation.search_teacher` does.
    """
    oracle, done = Oracle(scene), list[NavigationAction]()
    searcher, views = Searcher(scene, oracle), list[Pose]()
    right = (scene.target_index,) if wanted is None else tuple(wanted)
    goal = scene.target_index if scene.target_index in right else right[0] if right else None

    def policy(_: Image, world: World) -> NavigationAction:
        sightings = observe(world)
        views.append(world.pose)
        decision = (
            searcher.decide(views, (), sightings, done)
            if goal is None
            else oracle.decide(world.pose, goal, sightings, done)
        )
        done.append(decision.action)
        return done[-1]

    return policy
