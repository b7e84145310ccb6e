"""Runs a policy in a scene until it stops, and scores it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from simulation.camera import Image
from simulation.geometry import Pose
from simulation.ground_truth import observe
from simulation.oracle import Oracle
from simulation.scene import Scene
from simulation.world import World
from speculation.prompts import ActionKind, NavigationAction

SUCCESS_GAP = 1.0
"""Metres from the nose to the target's surface within which a stop, with the target in view, is a success."""
MAX_ACTIONS = 40

Policy = Callable[[Image, World], NavigationAction | None]
"""Frame and world in, action out; None where the policy gives no action, which ends the episode."""


class Outcome(str, Enum):
    """How an episode ended."""

    FOUND = "found"
    STOPPED_AWAY = "stopped away from the target"
    OUT_OF_ACTIONS = "ran out of actions"
    NO_ACTION = "gave no readable action"


@dataclass(frozen=True)
class EpisodeResult:
    """An episode's score. `path_length` is metres walked, `collisions` the actions that something cut short."""

    success: bool
    outcome: Outcome
    actions: tuple[NavigationAction, ...]
    poses: tuple[Pose, ...]
    path_length: float
    collisions: int
    final_gap: float


def execute(world: World, action: NavigationAction) -> bool:
    """Carry out an action in one go; return whether something blocked it. The robot stands still after it."""
    return world.displace(action.metres, action.radians)


def run_episode(
    scene: Scene,
    policy: Policy,
    max_actions: int = MAX_ACTIONS,
    size: int = 224,
    world_type: Callable[[Scene, int], World] = World,
) -> EpisodeResult:
    """Run `policy` from the scene's start until it stops, gives no action, or `max_actions` are used up.

    `world_type` is `World` (motion is exact) or `WalkingWorld` (a policy walks, physics decides).
    """
    actions: list[NavigationAction] = []
    poses, length, collisions = [scene.start], 0.0, 0
    with world_type(scene, size) as world:
        outcome = Outcome.OUT_OF_ACTIONS
        while len(actions) < max_actions:
            action = policy(world.render(), world)
            if action is None:
                outcome = Outcome.NO_ACTION
                break
            actions.append(action)
            if action.kind is ActionKind.STOP:
                sighting = observe(world)[scene.target_index]
                near = sighting.visible and sighting.distance <= SUCCESS_GAP
                outcome = Outcome.FOUND if near else Outcome.STOPPED_AWAY
                break
            collisions += execute(world, action)
            length += math.dist(poses[-1][:2], world.pose[:2])
            poses.append(world.pose)
        gap = observe(world)[scene.target_index].distance
    success = outcome is Outcome.FOUND
    return EpisodeResult(success, outcome, tuple(actions), tuple(poses), length, collisions, gap)


def oracle_policy(scene: Scene) -> Policy:
    """Return the oracle as a policy for one run of `run_episode`: it remembers what it did."""
    oracle, done = Oracle(scene), list[NavigationAction]()

    def policy(_: Image, world: World) -> NavigationAction:
        done.append(oracle.decide(world.pose, scene.target_index, observe(world), done).action)
        return done[-1]

    return policy
