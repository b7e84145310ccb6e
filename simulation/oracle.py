"""The privileged navigator that training imitates and benchmarks score against.

A decision is a pure function of scene, pose, target and sightings: nothing is remembered, so that a model that sees one
frame can learn it. What needs the map (going around) uses it; what a frame cannot tell (where to look for an unseen
target) is a fixed rule: turn left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from simulation.geometry import NOSE, Array, Pose, wrap
from simulation.ground_truth import Sighting, bearing_and_distance
from simulation.paths import SAFE_RADIUS
from simulation.scene import REACHED_GAP, Scene
from simulation.sight import sight_fractions
from speculation.prompts import (
    FORWARD_METRES,
    STOP,
    TURN_DEGREES,
    ActionKind,
    ActionSize,
    NavigationAction,
)

REACHED_BEARING = math.radians(20.0)
STEER_DEADBAND = math.radians(10.0)
"""More than half the turn grid (7.5 degrees), so that a turn towards the target is never followed by one back."""
KEEP_GAP = 0.35
"""A forward never ends nearer than this to the target, metres."""
SEARCH_TURN = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)

_SIZES = (ActionSize.SMALL, ActionSize.MEDIUM, ActionSize.LARGE)
_FORWARDS = tuple(FORWARD_METRES[size.value] for size in _SIZES)
_TURNS = tuple(math.radians(TURN_DEGREES[size.value]) for size in _SIZES)
_PLAN_TURNS = np.array([-_TURNS[2], -_TURNS[1], -_TURNS[0], 0.0, *_TURNS])
_SAMPLE = 0.05
_VIEW_LIMIT = math.radians(41.0)
_TURN_COST, _RADIAN_COST = 0.12, 0.10
_LOSE_BY_TURN, _LOSE_AHEAD, _NO_PROGRESS = 20.0, 3.0, 60.0


class Reason(str, Enum):
    """Why the oracle acts as it does."""

    SEARCH = "search"
    REACHED = "reached"
    CENTRE = "centre"
    APPROACH = "approach"
    DETOUR = "detour"


@dataclass(frozen=True)
class Decision:
    """An action and why. For a detour `blocker` names what stands in the way ('blue box', 'table') and `way` the side
    ('left', 'right') that the robot passes it on."""

    action: NavigationAction
    reason: Reason
    blocker: str | None = None
    way: str | None = None


class Oracle:
    """Decides for every object of one scene; the path fields it needs are computed once per target."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._fields: dict[int, Array] = {}

    def decide(self, pose: Pose, target_index: int | None, sightings: Sequence[Sighting]) -> Decision:
        """Return what to do at `pose`; `target_index` None means that the scene holds no such object."""
        if target_index is None or not sightings[target_index].visible:
            return Decision(SEARCH_TURN, Reason.SEARCH)
        item = self._scene.objects[target_index]
        bearing, gap = bearing_and_distance(pose, item)
        heading = wrap(math.atan2(item.y - pose.y, item.x - pose.x) - pose.yaw)
        if gap <= REACHED_GAP:
            if abs(bearing) <= REACHED_BEARING:
                return Decision(STOP, Reason.REACHED)
            return Decision(turn_by(heading), Reason.CENTRE)
        away = math.hypot(item.x - pose.x, item.y - pose.y) - item.radius - NOSE - REACHED_GAP
        blocker = self._blocker(pose, pose.yaw + heading, max(away, 0.0) + 0.05)
        if blocker is None:
            if abs(heading) > STEER_DEADBAND:
                return Decision(turn_by(heading), Reason.APPROACH)
            action = self._forward(pose, gap)
            if action is not None:
                return Decision(action, Reason.APPROACH)
            blocker = self._blocker(pose, pose.yaw, _FORWARDS[0])
        return self._detour(pose, target_index, heading, blocker or "wall")

    def _blocker(self, pose: Pose, direction: float, length: float) -> str | None:
        """Name what a robot sliding along a line would come too near to; where it is too near already, it may leave."""
        obstacles = self._scene.obstacles
        steps = np.arange(0.0, length + _SAMPLE, _SAMPLE).clip(max=length)[:, None]
        points = np.array(pose[:2]) + steps * np.array([math.cos(direction), math.sin(direction)])
        distances = obstacles.distances(points)
        short = distances < np.minimum(SAFE_RADIUS, distances[0] - 1e-6)
        if not short.any():
            return None
        first = int(np.argmax(short.any(axis=1)))
        column = int(np.argmin(np.where(short[first], distances[first], np.inf)))
        boxes = len(obstacles.boxes)
        return obstacles.boxes[column].name if column < boxes else self._scene.objects[column - boxes].target.text

    def _forward(self, pose: Pose, gap: float) -> NavigationAction | None:
        for size, metres in zip(reversed(_SIZES), reversed(_FORWARDS), strict=True):
            if (gap - metres >= KEEP_GAP or size is ActionSize.SMALL) and not self._blocker(pose, pose.yaw, metres):
                return NavigationAction(ActionKind.FORWARD, size)
        return None

    def _field(self, index: int) -> Array:
        if index not in self._fields:
            self._fields[index] = self._scene.grid.field(self._scene.goals(index))
        return self._fields[index]

    def _detour(self, pose: Pose, index: int, heading: float, blocker: str) -> Decision:
        """Take the first action of the best plan 'turn once, go forward once', the target kept in view if possible.

        Every action has a price and a plan's second half is among the next pose's plans, so turns do not undo turns.
        """
        scene, item = self._scene, self._scene.objects[index]
        yaws = pose.yaw + _PLAN_TURNS
        rays = np.stack([np.cos(yaws), np.sin(yaws)], axis=1)
        ends = np.array(pose[:2]) + np.array(_FORWARDS)[None, :, None] * rays[:, None]
        cost = scene.grid.sample(self._field(index), ends.reshape(-1, 2)).reshape(ends.shape[:2])
        cost = np.where(np.isfinite(cost), cost, _NO_PROGRESS)
        cost += (_TURN_COST * (_PLAN_TURNS != 0) + _RADIAN_COST * np.abs(_PLAN_TURNS))[:, None]
        cost += np.where(self._out_of_view(np.array([[pose[:2]]]), yaws[:, None], index), _LOSE_BY_TURN, 0.0) * (
            _PLAN_TURNS != 0
        )[:, None]
        hidden = sight_fractions(scene.obstacles, (ends + NOSE * rays[:, None]).reshape(-1, 2), item.disc) < 0.3
        lost = self._out_of_view(ends, yaws[:, None], index) | hidden.reshape(ends.shape[:2])
        cost += np.where(lost, _LOSE_AHEAD, 0.0)
        for turn, yaw in enumerate(yaws):
            reach = self._reach(pose, float(yaw))
            cost[turn, np.array(_FORWARDS) > reach + 1e-6] = np.inf
        cost += 0.03 * (len(_SIZES) - 1 - np.arange(len(_SIZES)))
        turn, length = np.unravel_index(int(np.argmin(cost)), cost.shape)
        if not np.isfinite(cost[turn, length]):
            return Decision(SEARCH_TURN, Reason.DETOUR, blocker, ActionKind.TURN_LEFT.value.split()[1])
        way = "left" if wrap(float(yaws[turn]) - pose.yaw - heading) > 0 else "right"
        if _PLAN_TURNS[turn] != 0.0:
            return Decision(turn_by(float(_PLAN_TURNS[turn])), Reason.DETOUR, blocker, way)
        return Decision(NavigationAction(ActionKind.FORWARD, _SIZES[length]), Reason.DETOUR, blocker, way)

    def _reach(self, pose: Pose, direction: float) -> float:
        """Return how far (up to the largest forward) a straight way keeps its safe distance."""
        steps = np.arange(0.0, _FORWARDS[-1] + _SAMPLE / 2, _SAMPLE)
        points = np.array(pose[:2]) + steps[:, None] * np.array([math.cos(direction), math.sin(direction)])
        distances = self._scene.obstacles.distances(points)
        short = (distances < np.minimum(SAFE_RADIUS, distances[0] - 1e-6)).any(axis=1)
        return float(steps[int(np.argmax(short)) - 1]) if short.any() else float(steps[-1])

    def _out_of_view(self, bases: Array, yaws: Array, index: int) -> Array:
        item = self._scene.objects[index]
        x = item.x - bases[..., 0] - NOSE * np.cos(yaws)
        y = item.y - bases[..., 1] - NOSE * np.sin(yaws)
        bearing = (np.arctan2(y, x) - yaws + np.pi) % (2 * np.pi) - np.pi
        out: Array = np.abs(bearing) > _VIEW_LIMIT
        return out


def turn_by(angle: float) -> NavigationAction:
    """Return the turn nearest to `angle` (radians, counter-clockwise), at least a small one."""
    size = _SIZES[int(np.argmin([abs(abs(angle) - turn) for turn in _TURNS]))]
    return NavigationAction(ActionKind.TURN_LEFT if angle > 0 else ActionKind.TURN_RIGHT, size)
