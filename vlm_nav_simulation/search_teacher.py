"""The teacher of searches: it knows walls and furniture, but an object only where the camera has looked.

The oracle walks straight to what it cannot have seen, and a model that imitates it learns to guess. This one decides
from what the robot has looked at, of which the prompt's memory (`speculation.language.search_memory`) holds a summary:
while turning here shows new floor, turn on, left at first; then walk to the next place that shows some; where all floor
was seen, the object is not here. A whole turn at a place is enough, whatever furniture hides from there. For what is in
view the oracle decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from speculation.language.prompts import NOT_HERE, ActionKind, ActionSize, Blocked, NavigationAction, Past
from speculation.language.search_memory import SECTORS
from vlm_nav_simulation.geometry import Array, Obstacles, Pose, nose_of
from vlm_nav_simulation.ground_truth import Sighting
from vlm_nav_simulation.line_of_sight import ranges
from vlm_nav_simulation.oracle import HALF_VIEW, SEARCH_TURN, Decision, Oracle, Reason, undoes
from vlm_nav_simulation.paths import Mask
from vlm_nav_simulation.scene import Scene

SEEN_METRES = 3.0
"""As far as this, floor that the camera shows counts as searched."""
_RAYS = 48
_TURN_GAIN, _HERE_GAIN, _WALK_GAIN = 0.06, 0.12, 0.08
"""Shares of an area's floor: what a turn has to show to go on turning, to begin turning, and a walk to be worth it."""
_FLOOR_CLEAR = 0.12
_AT_PLACE, _DOOR_KEEP, _AROUND = 0.45, 0.7, 1.0
_MOST_PLACES, _ENOUGH = 3, 0.95
_CANDIDATE_CELLS = 4
_RIGHT_TURN = NavigationAction(ActionKind.TURN_RIGHT, ActionSize.LARGE)
LARGE_TURNS = (SEARCH_TURN, _RIGHT_TURN)


class Searcher:
    """Decides for one scene; what it needs of the map is computed once, when it is first needed."""

    def __init__(self, scene: Scene, oracle: Oracle | None = None) -> None:
        self.scene, self._oracle = scene, oracle or Oracle(scene)
        self._shown: dict[Pose, Mask] = {}
        self._around: dict[tuple[int, int], Mask] = {}
        self._ways: dict[int, Array] = {}

    def decide(
        self,
        views: Sequence[Pose],
        wanted: Sequence[int],
        sightings: Sequence[Sighting],
        done: Sequence[Past] = (),
        last_seen: int | None = None,
    ) -> Decision:
        """Return what to do at the last of `views`, the poses of all frames of this search.

        `wanted` are the objects any of which is right, none for one that the scene lacks; `sightings` are of the last
        frame, `done` the actions before it. `last_seen` is the object that an earlier frame showed, as far as the
        robot remembers.
        """
        pose = views[-1]
        before = [past for past in done if isinstance(past, NavigationAction)]
        seen = [index for index in wanted if sightings[index].visible]
        if seen:
            nearest = min(seen, key=lambda index: sightings[index].distance)
            return self._oracle.around(pose, nearest, self._oracle.decide(pose, nearest, sightings, before))
        if last_seen is not None:
            back = self._oracle.turn_back(pose, last_seen)
            if back is not None:
                return back
        return self._search(views, done)

    def covered(self, views: Sequence[Pose]) -> float:
        """Return the share of the floor that frames from these poses show."""
        shown = np.logical_or.reduce([self._shown_at(view) for view in views])
        return float((shown & self._floor).sum() / self._floor.sum())

    @cached_property
    def places(self) -> tuple[tuple[int, Pose], ...]:
        """Where to look around to have seen all floor: for every area a few places (index of the area, pose)."""
        found: list[tuple[int, Pose]] = []
        for index, floor in enumerate(self._areas):
            left = floor.copy()
            candidates = np.argwhere(floor & self._reachable)
            candidates = candidates[(candidates % _CANDIDATE_CELLS == 0).all(axis=1)]
            while len(candidates) and left.sum() > (1 - _ENOUGH) * floor.sum():
                gains = [int((self._around_cell(int(i), int(j)) & left).sum()) for i, j in candidates]
                best = int(np.argmax(gains))
                if gains[best] < _WALK_GAIN * floor.sum() or sum(area == index for area, _ in found) >= _MOST_PLACES:
                    break
                i, j = map(int, candidates[best])
                left &= ~self._around_cell(i, j)
                x, y = self.scene.grid.centres[i, j]
                found.append((index, Pose(float(x), float(y), 0.0)))
        return tuple(found)

    def _search(self, views: Sequence[Pose], past: Sequence[Past]) -> Decision:
        pose, shown = views[-1], np.logical_or.reduce([self._shown_at(view) for view in views])
        done = [action for action in past if isinstance(action, NavigationAction)]
        area = self._area_at(pose)
        floor = self._areas[area]
        around = _looked_around(views, pose)
        gain = 0.0 if around else float((self._around_pose(pose) & floor & ~shown).sum() / max(1, floor.sum()))
        turn = Decision(search_turn(past), Reason.SEARCH)
        turning = bool(past) and past[-1] == turn.action
        at_place = any(a == area and math.dist(p[:2], pose[:2]) <= _AT_PLACE for a, p in self.places)
        in_door = any(math.dist((door.x, door.y), pose[:2]) < _DOOR_KEEP for door in self.scene.plan.doorways)
        if gain >= (_TURN_GAIN if turning or at_place else _HERE_GAIN) and not (in_door and not turning):
            return turn
        goals = self._next_places(views, shown)
        steps = [step for goal in goals if (step := self._walk(pose, goal, done)) is not None]
        # A way that begins out of view is found by turning on: what the robot remembers does not tell to which side it
        # lies, and who learns to guess turns to and fro. So within an area any way that is in view will do.
        known = [step for step in steps if step.reason is Reason.DOOR or step.action not in LARGE_TURNS]
        if known and known[0].reason is steps[0].reason:
            return known[0]
        if goals and not around:
            return turn
        if steps:
            return replace(steps[0], action=turn.action)
        return Decision(NOT_HERE, Reason.NOT_HERE)

    def _next_places(self, views: Sequence[Pose], shown: Mask) -> list[int]:
        """Return the places from which enough new floor is to be seen: those of the robot's area first, nearest first.

        Where it has turned all around is none of them.
        """
        pose, ranks = views[-1], list[tuple[float, float, int]]()
        here = self._area_at(pose)
        for index, (area, place) in enumerate(self.places):
            floor = self._areas[area]
            gain = float((self._around_pose(place) & floor & ~shown).sum() / floor.sum())
            if gain < _WALK_GAIN or _looked_around(views, place):
                continue
            far = float(self.scene.grid.sample(self._way_to(index), np.array([pose[:2]]))[0])
            if math.isfinite(far):
                ranks.append((float(area != here), far, index))
        return [index for *_, index in sorted(ranks)]

    def _walk(self, pose: Pose, goal: int, done: Sequence[NavigationAction]) -> Decision | None:
        area, _ = self.places[goal]
        step = self._oracle.follow(pose, self._way_to(goal), "way")
        if step is None:
            return None
        action = step.action
        if done and undoes(action, done[-1]):
            action = self._oracle.forward_instead(pose, self._way_to(goal)) or action
        reason = Reason.EXPLORE if area == self._area_at(pose) else Reason.DOOR
        return replace(step, action=action, reason=reason, blocker=None)

    def _way_to(self, index: int) -> Array:
        if index not in self._ways:
            grid, place = self.scene.grid, self.places[index][1]
            near = np.hypot(grid.centres[..., 0] - place.x, grid.centres[..., 1] - place.y) <= _AT_PLACE / 2
            goal: Mask = near & grid.free
            goal[grid.cell_of(place.x, place.y)] = True
            self._ways[index] = grid.field(goal)
        return self._ways[index]

    # -- what the camera shows

    @cached_property
    def _floor(self) -> Mask:
        floor: Mask = self.scene.grid.clearance >= _FLOOR_CLEAR
        return floor

    @cached_property
    def _reachable(self) -> Mask:
        return self.scene.grid.reachable(self.scene.start.x, self.scene.start.y)

    @cached_property
    def _areas(self) -> tuple[Mask, ...]:
        """The floor of each area of the plan."""
        centres = self.scene.grid.centres
        return tuple(
            self._floor
            & (np.abs(centres[..., 0] - area.x) <= area.half_x)
            & (np.abs(centres[..., 1] - area.y) <= area.half_y)
            for area in self.scene.plan.areas
        )

    @cached_property
    def _screens(self) -> Obstacles:
        return Obstacles(self.scene.boxes, [])

    def _area_at(self, pose: Pose) -> int:
        return self.scene.plan.areas.index(self.scene.area_at(pose.x, pose.y))

    def _shown_at(self, view: Pose) -> Mask:
        """Return the floor that a frame shows. Rays over the whole field of view; furniture hides what is behind."""
        if view not in self._shown:
            eye = nose_of(view)
            angles = view.yaw + np.linspace(-HALF_VIEW, HALF_VIEW, _RAYS // 2)
            self._shown[view] = self._lit(eye, angles, view.yaw, HALF_VIEW)
        return self._shown[view]

    def _around_pose(self, pose: Pose) -> Mask:
        return self._around_cell(*self.scene.grid.cell_of(pose.x, pose.y))

    def _around_cell(self, i: int, j: int) -> Mask:
        """Return the floor that a whole turn at a cell shows, from the camera at the robot's nose."""
        if (i, j) not in self._around:
            x, y = map(float, self.scene.grid.centres[i, j])
            angles = np.linspace(-math.pi, math.pi, _RAYS, endpoint=False)
            self._around[i, j] = self._lit((x, y), angles, 0.0, math.pi)
        return self._around[i, j]

    def _lit(self, eye: tuple[float, float], angles: Array, yaw: float, half: float) -> Mask:
        far = np.minimum(ranges(self._screens, eye, angles), SEEN_METRES)
        dx, dy = self.scene.grid.centres[..., 0] - eye[0], self.scene.grid.centres[..., 1] - eye[1]
        bearing = (np.arctan2(dy, dx) - yaw + math.pi) % math.tau - math.pi
        step = (angles[1] - angles[0]) if len(angles) > 1 else 1.0
        ray = np.clip(np.rint((bearing - (angles[0] - yaw)) / step).astype(int), 0, len(angles) - 1)
        lit: Mask = (np.abs(bearing) <= half) & (np.hypot(dx, dy) <= far[ray]) & self._floor
        return lit


def search_turn(done: Sequence[Past]) -> NavigationAction:
    """Return the next turn of a search: on as the last one, away from what blocked it, else left."""
    last = done[-1] if done else None
    return _RIGHT_TURN if last in (_RIGHT_TURN, Blocked(SEARCH_TURN)) else SEARCH_TURN


def _looked_around(views: Sequence[Pose], place: Pose) -> bool:
    """Return whether frames from a place show all directions."""
    yaws = np.array([view.yaw for view in views if math.dist(view[:2], place[:2]) <= _AROUND])
    directions = np.arange(SECTORS) * math.tau / SECTORS
    off = np.abs((directions[:, None] - yaws + math.pi) % math.tau - math.pi)
    return bool((off <= HALF_VIEW).any(axis=1).all())
