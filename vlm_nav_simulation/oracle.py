"""The privileged navigator that training imitates and benchmarks score against.

A decision is a pure function of scene, pose, target, sightings and the actions done so far, which the prompt lists, so
a model that sees one frame can learn it. What needs the map (going around) uses it; what a frame hides (where to
look for an unseen target) is a fixed rule: turn left, and after a whole circle walk on. A turn is never undone by the
next one: a model that misjudges a bearing by a few degrees would turn to and fro for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from speculation.language.prompts import (
    FORWARD_METRES,
    STOP,
    TURN_DEGREES,
    ActionKind,
    ActionSize,
    NavigationAction,
)
from vlm_nav_simulation.geometry import FOOTPRINT_OFFSETS, FOOTPRINT_RADIUS, NOSE, Array, Pose, wrap
from vlm_nav_simulation.ground_truth import Sighting, bearing_and_distance
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.line_of_sight import sight_fractions
from vlm_nav_simulation.paths import NEIGHBOURS, SAFE_RADIUS, Mask
from vlm_nav_simulation.scene import REACHED_GAP, Scene

REACHED_BEARING = math.radians(20.0)
STEER_DEADBAND = math.radians(10.0)
"""More than half the turn grid (7.5 degrees), so that a turn towards the target is never followed by one back."""
CLOSE_GAP = 1.2
"""Nearer than this (metres) the robot only has to go straight, so its width counts instead of its turning circle."""
KEEP_GAP = 0.35
"""A forward never ends nearer than this to the target, metres."""
SEARCH_TURN = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
CIRCLE = 7
"""After this many search turns in a row every direction has been looked at."""

_SIZES = (ActionSize.SMALL, ActionSize.MEDIUM, ActionSize.LARGE)
_FORWARDS = tuple(FORWARD_METRES[size.value] for size in _SIZES)
_TURNS = tuple(math.radians(TURN_DEGREES[size.value]) for size in _SIZES)
_PLAN_TURNS = np.array([-_TURNS[2], -_TURNS[1], -_TURNS[0], 0.0, *_TURNS])
_SHORT = 0.03 * (len(_SIZES) - 1 - np.arange(len(_SIZES)))
_FOLLOW_TURNS = np.radians(np.arange(-165.0, 181.0, 15.0))
_SAMPLE = 0.05
_RECOGNISED = 2.0
"""Nearer than this (metres, besides REACHED_GAP) the smallest object is seen when it is faced."""
_CLOSE_RADIUS = FOOTPRINT_RADIUS + 0.07
_SLACK = 0.05
_HIDDEN = 0.3
HALF_VIEW = math.radians(42.0)
"""Half the camera's field of view: what is further off its axis is out of view."""
_TURN_COST, _RADIAN_COST, _BLIND_COST = 0.12, 0.10, 4.0
FACING = math.radians(24.0)
"""Further off than this, what was in view before is turned to."""
_TURN_BACK_LIMIT, _STOP_ASKEW = math.radians(25.0), math.radians(35.0)
_SQUEEZE, _LOSE_AHEAD, _LOSE_BY_TURN, _NO_PROGRESS = 1.5, 3.0, 20.0, 60.0


class Reason(str, Enum):
    """Why the oracle acts as it does."""

    SEARCH = "search"
    EXPLORE = "explore"
    REACHED = "reached"
    CENTRE = "centre"
    APPROACH = "approach"
    DETOUR = "detour"
    DOOR = "door"
    RETURN = "return"
    NOT_HERE = "not here"


@dataclass(frozen=True)
class Decision:
    """An action and why."""

    action: NavigationAction
    reason: Reason
    blocker: str | None = None
    """What stands in the way of a detour ('blue box', 'table')."""


class Oracle:
    """Decides for every object of one scene; the path fields it needs are computed once per target."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._fields: dict[int, Array] = {}

    def decide(
        self,
        pose: Pose,
        target_index: int | None,
        sightings: Sequence[Sighting],
        done: Sequence[NavigationAction] = (),
    ) -> Decision:
        """Return what to do at `pose` after the actions `done`; `target_index` None: the scene holds no such object."""
        decision = self._decide(pose, target_index, sightings)
        if decision.reason is Reason.SEARCH:
            return self._explore(pose, done) or decision
        if target_index is None or not done or not undoes(decision.action, done[-1]):
            return decision
        return self._go_on(pose, target_index, decision)

    def _explore(self, pose: Pose, done: Sequence[NavigationAction]) -> Decision | None:
        """After a circle without the target, return two forwards one after the other, as soon as the way is free."""
        before = done[:-1] if done and done[-1].kind is ActionKind.FORWARD else done
        turns = next((i for i, action in enumerate(reversed(before)) if action != SEARCH_TURN), len(before))
        reach = self._reach(pose, pose.yaw)
        if turns < CIRCLE or reach < _FORWARDS[1]:
            return None
        return Decision(NavigationAction(ActionKind.FORWARD, _SIZES[2 if reach >= _FORWARDS[2] else 1]), Reason.EXPLORE)

    def _go_on(self, pose: Pose, index: int, decision: Decision) -> Decision:
        """Return what to do instead of turning back: stop, or go ahead where that is free and about right."""
        item = self._scene.objects[index]
        bearing, gap = bearing_and_distance(pose, item)
        heading = wrap(math.atan2(item.y - pose.y, item.x - pose.x) - pose.yaw)
        if decision.reason is Reason.CENTRE:
            return Decision(STOP, Reason.REACHED) if abs(bearing) <= _STOP_ASKEW else decision
        reach = self._reach(pose, pose.yaw)
        if decision.reason is Reason.APPROACH:
            reach = min(reach, gap - KEEP_GAP)
        if reach < _FORWARDS[0] or (decision.reason is Reason.APPROACH and abs(heading) > _TURN_BACK_LIMIT):
            return decision
        size = _SIZES[1 if reach >= _FORWARDS[1] and gap > CLOSE_GAP else 0]
        return replace(decision, action=NavigationAction(ActionKind.FORWARD, size))

    def _decide(self, pose: Pose, target_index: int | None, sightings: Sequence[Sighting]) -> Decision:
        if target_index is None:
            return Decision(SEARCH_TURN, Reason.SEARCH)
        if not sightings[target_index].visible:
            return self._passage(pose, target_index) or Decision(SEARCH_TURN, Reason.SEARCH)
        bearing, gap = bearing_and_distance(pose, self._scene.objects[target_index])
        heading, away, blocker = self._straight(pose, target_index)
        if gap <= REACHED_GAP:
            if abs(bearing) <= REACHED_BEARING:
                return Decision(STOP, Reason.REACHED)
            return Decision(turn_by(heading), Reason.CENTRE)
        if blocker is None:
            return Decision(self._steer(pose, heading, gap), Reason.APPROACH)
        # a wall is never seen over: the path alone leads around it, whatever it hides on the way
        plan = self._passage(pose, target_index) if blocker == "wall" else None
        plan = plan or self._detour(pose, target_index, blocker)
        if plan is not None:
            return plan
        # nothing keeps the target in view: squeeze past with the robot's width alone, where that is enough
        if self._blocker(pose, pose.yaw + heading, max(away, 0.0) + 0.05, close=True) is None:
            return Decision(self._steer(pose, heading, gap), Reason.APPROACH)
        return self._passage(pose, target_index) or Decision(SEARCH_TURN, Reason.DETOUR, blocker)

    def _straight(self, pose: Pose, index: int) -> tuple[float, float, str | None]:
        """Return the way straight to an object: the turn to it, radians, its length, metres, and what blocks it."""
        item = self._scene.objects[index]
        heading = wrap(math.atan2(item.y - pose.y, item.x - pose.x) - pose.yaw)
        away = math.hypot(item.x - pose.x, item.y - pose.y) - item.radius - NOSE - REACHED_GAP
        close = away <= CLOSE_GAP - REACHED_GAP
        return heading, away, self._blocker(pose, pose.yaw + heading, max(away, 0.0) + 0.05, close)

    def _passage(self, pose: Pose, index: int) -> Decision | None:
        """Return the next action on the way to a target that walls hide or that is too far away to be made out.

        None in a single room, where looking around is all it takes, and where the target only has to be faced.
        """
        if self._scene.layout is Layout.ROOM:
            return None
        heading, away, blocker = self._straight(pose, index)
        if blocker is not None:
            return self.follow(pose, self._field(index), blocker)
        if away < _RECOGNISED:
            return None
        return Decision(self._steer(pose, heading, away + REACHED_GAP), Reason.APPROACH)

    def turn_back(self, pose: Pose, index: int) -> Decision | None:
        """Return the next action towards an object that was in view before; None where it only has to be looked for.

        It is turned to where the straight way is free; else the way around what hides it is followed, wherever that
        leads: `around` does the same while the object is in view, so that neither undoes what the other did.
        """
        bearing, _ = bearing_and_distance(pose, self._scene.objects[index])
        blocker = self._straight(pose, index)[2]
        if blocker is None and abs(bearing) > FACING:
            return Decision(turn_by(bearing), Reason.RETURN)
        step = self.follow(pose, self._field(index), "")
        return None if step is None else replace(step, reason=Reason.RETURN, blocker=None)

    def around(self, pose: Pose, index: int, decision: Decision) -> Decision:
        """Return a decision about an object in view; where it only turns it out of view, the way to it instead.

        For those who remember where it was: who does not would look for it again, and turn back.
        """
        bearing, _ = bearing_and_distance(pose, self._scene.objects[index])
        if decision.reason is not Reason.DETOUR or abs(wrap(bearing - decision.action.radians)) <= HALF_VIEW:
            return decision
        blocker = self._straight(pose, index)[2]
        return self.follow(pose, self._field(index), blocker or decision.blocker or "") or decision

    def forward_instead(self, pose: Pose, field: Array) -> NavigationAction | None:
        """Return the longest forward that is free and comes nearer along a field of ways, if any."""
        reach = self._reach(pose, pose.yaw)
        ahead = np.array([math.cos(pose.yaw), math.sin(pose.yaw)])
        here = self._scene.grid.sample(field, np.array([pose[:2]]))[0]
        for size, metres in zip(reversed(_SIZES), reversed(_FORWARDS), strict=True):
            end = np.array(pose[:2]) + metres * ahead
            if metres <= reach + 1e-6 and self._scene.grid.sample(field, end[None])[0] < here - _SAMPLE:
                return NavigationAction(ActionKind.FORWARD, size)
        return None

    def follow(self, pose: Pose, field: Array, blocker: str) -> Decision | None:
        """Return the first action of the best plan 'turn to any side, go forward once' along a field of ways, if any.

        Every forward has to come nearer along the way, so that no turn is traded for a step away.
        """
        yaws, _, _, cost = self._plans(pose, _FOLLOW_TURNS, field)
        cost = np.where(cost < self._scene.grid.sample(field, np.array([pose[:2]])) - _SAMPLE, cost, np.inf)
        turns = np.ceil(np.abs(_FOLLOW_TURNS) / _TURNS[-1] - 1e-9)
        cost += (_TURN_COST * turns + _RADIAN_COST * np.abs(_FOLLOW_TURNS))[:, None] + self._prices(pose, yaws) + _SHORT
        turn, length = divmod(int(np.argmin(cost)), cost.shape[1])
        return _detour(_FOLLOW_TURNS[turn], length, blocker) if np.isfinite(cost[turn, length]) else None

    def _plans(self, pose: Pose, turns: Array, field: Array) -> tuple[Array, Array, Array, Array]:
        """Return where plans 'turn once, go forward once' lead, for turns [k], and what is left to walk from there.

        Headings [k], their directions [k, 2], ends [k, sizes, 2], and the field there [k, sizes].
        """
        yaws = pose.yaw + turns
        rays = np.stack([np.cos(yaws), np.sin(yaws)], axis=1)
        ends = np.array(pose[:2]) + np.array(_FORWARDS)[None, :, None] * rays[:, None]
        return yaws, rays, ends, self._scene.grid.sample(field, ends.reshape(-1, 2)).reshape(ends.shape[:2])

    def _distances(self, pose: Pose, direction: float, length: float) -> Array:
        """Distances to all obstacles [k, n] along a straight way of the base centre, every 5 cm."""
        steps = np.arange(0.0, length + _SAMPLE / 2, _SAMPLE)[:, None]
        points = np.array(pose[:2]) + steps * np.array([math.cos(direction), math.sin(direction)])
        return self._scene.obstacles.distances(points)

    def _blocker(self, pose: Pose, direction: float, length: float, close: bool) -> str | None:
        """Name what a straight way would come too near to, None where it is free.

        Where the robot is too near to something already, it may leave, not come nearer.
        """
        radius, nose = (_CLOSE_RADIUS, FOOTPRINT_OFFSETS[-1]) if close else (SAFE_RADIUS + _SLACK, 0.0)
        distances = self._distances(pose, direction, length + nose)
        short = distances < np.minimum(radius, distances[0] - 1e-6)
        if not short.any():
            return None
        first = int(np.argmax(short.any(axis=1)))
        column = int(np.argmin(np.where(short[first], distances[first], np.inf)))
        boxes = self._scene.boxes
        return boxes[column].name if column < len(boxes) else self._scene.objects[column - len(boxes)].target.text

    def _steer(self, pose: Pose, heading: float, gap: float) -> NavigationAction:
        """Turn towards the target, or go forward as far as is free and useful.

        The way to the target is free with some slack, and off the axis by the dead band at most: small always fits.
        """
        if abs(heading) > STEER_DEADBAND:
            return turn_by(heading)
        reach = self._reach(pose, pose.yaw)
        fitting = [i for i in range(1, 3) if _FORWARDS[i] <= min(gap - KEEP_GAP, reach) + 1e-6]
        return NavigationAction(ActionKind.FORWARD, _SIZES[fitting[-1] if fitting else 0])

    def _field(self, index: int) -> Array:
        if index not in self._fields:
            grid = self._scene.grid
            factors = np.ones((len(NEIGHBOURS), *grid.free.shape))
            for k, (i, j, _) in enumerate(NEIGHBOURS):
                yaw = np.array(math.atan2(j, i))
                factors[k][self._out_of_view(grid.centres, yaw, index)] = _BLIND_COST
            factors[:, self._hidden(grid.centres, index)] = _BLIND_COST
            self._fields[index] = grid.field(self._scene.goals(index), factors)
        return self._fields[index]

    def _detour(self, pose: Pose, index: int, blocker: str) -> Decision | None:
        """Return the first action of the best plan 'turn once, go forward once' that keeps the target in view.

        None where every plan turns away from it. Every action has a price and a plan's second half is among the next
        pose's plans, so turns do not undo turns.
        """
        yaws, rays, ends, cost = self._plans(pose, _PLAN_TURNS, self._field(index))
        cost = np.where(np.isfinite(cost), cost, _NO_PROGRESS)
        turning = _PLAN_TURNS != 0.0
        cost += (_TURN_COST * turning + _RADIAN_COST * np.abs(_PLAN_TURNS))[:, None]
        # turning moves the camera as well: it may pass behind something
        here = np.array([pose[:2]])
        hidden = self._hidden(here + NOSE * rays, index)
        unseen = self._out_of_view(here, yaws, index) | (hidden & ~hidden[_PLAN_TURNS == 0.0])
        cost += np.where(unseen & turning, _LOSE_BY_TURN, 0.0)[:, None]
        lost = self._out_of_view(ends, yaws[:, None], index) | self._hidden(ends + NOSE * rays[:, None], index)
        cost += np.where(lost, _LOSE_AHEAD, 0.0)
        cost += self._prices(pose, yaws)
        cost += _SHORT
        turn, length = divmod(int(np.argmin(cost)), cost.shape[1])
        return _detour(_PLAN_TURNS[turn], length, blocker) if cost[turn, length] < _LOSE_BY_TURN else None

    def _prices(self, pose: Pose, yaws: Array) -> Array:
        """Return what each forward [directions, sizes] costs besides its way: inf if it bumps, less to squeeze by."""
        prices = np.zeros((len(yaws), len(_SIZES)))
        steps = np.arange(0.0, _FORWARDS[-1] + FOOTPRINT_OFFSETS[-1] + _SAMPLE / 2, _SAMPLE)
        rays = np.array([(math.cos(yaw), math.sin(yaw)) for yaw in map(float, yaws)])
        points = np.array(pose[:2]) + steps[:, None] * rays[:, None]
        distances = self._scene.obstacles.distances(points.reshape(-1, 2)).reshape(*points.shape[:2], -1)
        based = int((steps < _FORWARDS[-1] + _SAMPLE / 2).sum())
        for part, radius, nose, price in (
            (distances[:, :based], SAFE_RADIUS, 0.0, _SQUEEZE),
            (distances, _CLOSE_RADIUS, FOOTPRINT_OFFSETS[-1], np.inf),
        ):
            prices[np.array(_FORWARDS) > _free(part, radius, nose)[:, None] + 1e-6] += price
        return prices

    def _reach(self, pose: Pose, direction: float) -> float:
        """Return how far (up to the largest forward) a straight way keeps its distance, metres."""
        return float(_free(self._distances(pose, direction, _FORWARDS[-1])[None], SAFE_RADIUS, 0.0)[0])

    def _hidden(self, eyes: Array, index: int) -> Mask:
        """Whether little of the object can be seen over the obstacles from each eye [..., 2]."""
        seen = sight_fractions(self._scene.obstacles, eyes.reshape(-1, 2), self._scene.objects[index].disc)
        hidden: Mask = (seen < _HIDDEN).reshape(eyes.shape[:-1])
        return hidden

    def _out_of_view(self, bases: Array, yaws: Array, index: int) -> Mask:
        """Whether the object's middle is (nearly) out of the field of view of a robot at each base [..., 2]."""
        item = self._scene.objects[index]
        x = item.x - bases[..., 0] - NOSE * np.cos(yaws)
        y = item.y - bases[..., 1] - NOSE * np.sin(yaws)
        bearing = (np.arctan2(y, x) - yaws + np.pi) % (2 * np.pi) - np.pi
        out: Mask = np.abs(bearing) > HALF_VIEW
        return out


def _free(distances: Array, radius: float, nose: float) -> Array:
    """Return how far (up to the largest forward) each way keeps `radius` from obstacles, metres -> [directions].

    distances [directions, steps of _SAMPLE, obstacles]; the ways begin `nose` behind the robot's.
    """
    short: Mask = np.logical_or.reduce(distances < np.minimum(radius, distances[:, :1] - 1e-6), axis=2)
    reach: Array = np.where(short.any(axis=1), (short.argmax(axis=1) - 1) * _SAMPLE - nose, _FORWARDS[-1])
    return reach


def _detour(turn: float, length: int, blocker: str) -> Decision:
    """Return the first action of a plan: its turn, or its forward where it has none."""
    action = turn_by(float(turn)) if turn else NavigationAction(ActionKind.FORWARD, _SIZES[length])
    return Decision(action, Reason.DETOUR, blocker)


def undoes(action: NavigationAction, last: NavigationAction) -> bool:
    """Return whether an action turns back what the last one turned."""
    # what a search turn brings into view may well stand on the other side
    return last != SEARCH_TURN and {action.kind, last.kind} == {ActionKind.TURN_LEFT, ActionKind.TURN_RIGHT}


def turn_by(angle: float) -> NavigationAction:
    """Return the turn nearest to `angle` (radians, counter-clockwise), at least a small one."""
    size = _SIZES[int(np.argmin([abs(abs(angle) - turn) for turn in _TURNS]))]
    return NavigationAction(ActionKind.TURN_LEFT if angle > 0 else ActionKind.TURN_RIGHT, size)
