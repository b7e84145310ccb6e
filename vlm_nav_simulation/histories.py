"""Histories of searches: what was looked at and done before a frame, and what the robot's memory holds of it.

They are the walk that the frame lies on, or made up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from speculation.language.prompts import MOTIONS, ActionKind, NavigationAction, Past
from speculation.language.search_memory import DOORWAY, SIDE_PHRASES, SearchMemory, describe_distance
from vlm_nav_simulation.geometry import Box, Pose, nose_of, wrap
from vlm_nav_simulation.ground_truth import MIN_PIXELS, Doorway, bearing_and_distance, doorways, side_of
from vlm_nav_simulation.layouts import WALL_THICKNESS, Area
from vlm_nav_simulation.line_of_sight import sight_fractions
from vlm_nav_simulation.oracle import CIRCLE, FACING, SEARCH_TURN, Decision, Reason, turn_by
from vlm_nav_simulation.queries import Query
from vlm_nav_simulation.scene import Scene, SceneObject
from vlm_nav_simulation.search_teacher import Searcher

_MAX_TO_AND_FRO = 6
"""Turns, each undoing the one before, at the end of a made-up history."""
_NOTED, _NOTE_BEARING, _NOTE_METRES = 0.85, math.radians(6.0), 0.12
"""What a model's answers would note: how often, and how wrong (standard deviations; distance as a share)."""
FOCAL, _COVERED, _EDGE = 112.0, 0.7, math.radians(45.0)
"""Focal length of a frame of 224 pixels, pixels; share of its box that an object covers; half the field of view."""
_STEP = 0.75
"""Metres between two frames of a made-up way."""
_SAME_OBJECT = 1.5
"""Further than this from where the memory has it, metres, an object is not what was seen there."""
_CLEARANCE = 0.1
"""Free space around a random pose's footprint, metres."""

FORWARDS = tuple(action for action in MOTIONS if action.kind is ActionKind.FORWARD)
TURNS = tuple(action for action in MOTIONS if action.radians)


@dataclass
class History:
    """What one search looked at and did, up to a frame: its poses, the newest last, and the actions between them."""

    views: list[Pose]
    done: list[Past] = field(default_factory=list)
    shown: dict[Pose, tuple[int, ...]] = field(default_factory=dict)
    """Objects in view from a pose: those of a rendered frame, else by geometry."""
    doors: dict[Pose, tuple[Doorway, ...]] = field(default_factory=dict)
    """Doorways in view from a pose."""


def random_pose(scene: Scene, rng: np.random.Generator) -> Pose:
    """Return a pose anywhere in the room whose footprint has some clearance."""
    for _ in range(500):
        x, y, yaw = rng.uniform(-1, 1, 3) * (scene.half_x, scene.half_y, math.pi)
        pose = Pose(float(x), float(y), float(yaw))
        if scene.obstacles.footprint_clearance(pose) >= _CLEARANCE:
            return pose
    return scene.start


def made_up(scene: Scene, searcher: Searcher, pose: Pose, rng: np.random.Generator) -> History:
    """Return what a robot may have looked at and done before it came to `pose`: often nothing, often a search."""
    views, done = [pose], list[Past]()
    kind = rng.random()
    if kind < 0.15:
        return History(views)
    if kind < 0.5:
        turns = int(rng.integers(1, CIRCLE + 2))
        done = [SEARCH_TURN] * turns
        views = [Pose(pose.x, pose.y, wrap(pose.yaw - k * SEARCH_TURN.radians)) for k in range(turns, 0, -1)]
        views.append(pose)
    elif kind < 0.8:
        turn = TURNS[int(rng.integers(len(TURNS)))]
        # No walk of a teacher turns to and fro; a model that does goes on so, unless it was taught what comes after.
        turns = 1 if kind < 0.65 else int(rng.integers(2, _MAX_TO_AND_FRO + 1))
        done = list[Past](turn if k % 2 == 0 else _back(turn) for k in range(turns))[::-1]
        before = Pose(pose.x, pose.y, wrap(pose.yaw - turn.radians))
        views = [pose if k % 2 == 0 else before for k in range(turns + 1)][::-1]
    first = views[0]
    if rng.random() < 0.5:
        ahead = FORWARDS[int(rng.integers(len(FORWARDS)))]
        back = Pose(
            first.x - ahead.metres * math.cos(first.yaw), first.y - ahead.metres * math.sin(first.yaw), first.yaw
        )
        if scene.obstacles.footprint_clearance(back) >= 0.0:
            views, done = [back, *views], [ahead, *done]
    kind = rng.random()
    elsewhere = [random_pose(scene, rng)] if kind < 0.3 else [p for _, p in searcher.places] if kind < 0.45 else []
    for place in reversed(elsewhere):
        turns = CIRCLE if kind >= 0.3 else int(rng.integers(CIRCLE + 1))
        around = [Pose(place.x, place.y, wrap(place.yaw + k * SEARCH_TURN.radians)) for k in range(turns + 1)]
        way = way_between(scene, place, views[0])
        views, done = [*around, *way, *views], [*[SEARCH_TURN] * turns, *[FORWARDS[-1]] * (len(way) + 1), *done]
    return History(views, done)


def is_to_and_fro(done: Sequence[Past], action: NavigationAction) -> bool:
    """Return whether an action would be the third turn in a row, each to the other side than the one before."""
    turns = [past.radians if isinstance(past, NavigationAction) else 0.0 for past in (*done[-2:], action)]
    return len(turns) == 3 and all(a * b < 0.0 for a, b in pairwise(turns))


def _back(turn: NavigationAction) -> NavigationAction:
    """Return the turn that undoes one."""
    return next(each for each in TURNS if each.radians == -turn.radians)


def way_between(scene: Scene, start: Pose, end: Pose) -> list[Pose]:
    """Return frames on the way from one place to another: straight, but through doorways where areas differ."""
    areas = [scene.area_at(pose.x, pose.y) for pose in (start, end)]
    points = [start[:2]]
    if areas[0] != areas[1]:
        doors = [[door for door in scene.plan.doorways if _leads_to(door, area)] for area in areas]
        shared = [door for door in doors[0] if door in doors[1]]
        points += [(door.x, door.y) for door in shared[:1] or (*doors[0], *doors[1])]
    points.append(end[:2])
    way: list[Pose] = []
    for a, b in pairwise(points):
        steps, yaw = max(1, round(math.dist(a, b) / _STEP)), math.atan2(b[1] - a[1], b[0] - a[0])
        way += [Pose(a[0] + (b[0] - a[0]) * k / steps, a[1] + (b[1] - a[1]) * k / steps, yaw) for k in range(steps)]
    return way[1:]


def _leads_to(door: Box, area: Area) -> bool:
    apart = abs(door.x - area.x) - area.half_x - door.half_x, abs(door.y - area.y) - area.half_y - door.half_y
    return max(apart) <= WALL_THICKNESS


def remember(scene: Scene, history: History, query: Query, rng: np.random.Generator) -> SearchMemory:
    """Return the memory of a history after answers that name most of what is in view, about where it is.

    It reads them as the robot's does. The last view's own answer is not given yet.
    """
    memory, wanted = SearchMemory(), query.objects(scene)
    _show(scene, history)
    for view in history.views[:-1]:
        memory.look(*view)
        memory.read(_answer(scene, history, view, wanted, rng), query.colour, query.object_class)
    memory.look(*history.views[-1])
    return memory


def _answer(scene: Scene, history: History, view: Pose, wanted: Sequence[int], rng: np.random.Generator) -> str:
    """Return what an answer about a view says of the object, or, where it does not see it, of doorways."""
    seen = [index for index in wanted if index in history.shown[view]]
    if seen and rng.random() < _NOTED:
        item = min((scene.objects[index] for index in seen), key=lambda item: bearing_and_distance(view, item)[1])
        return _words(item.target.text, *bearing_and_distance(view, item), rng)
    if view not in history.doors:
        history.doors[view] = tuple(doorways(scene, view))
    noted = [door for door in history.doors[view] if rng.random() < _NOTED]
    return " ".join(_words(DOORWAY, door.bearing, door.distance, rng) for door in noted)


def _words(name: str, bearing: float, distance: float, rng: np.random.Generator) -> str:
    side = side_of(bearing + rng.normal(0, _NOTE_BEARING))
    away = describe_distance(distance * (1 + rng.normal(0, _NOTE_METRES)))
    return f"The {name} is {SIDE_PHRASES[side.value][0]}, about {away} away."


def _show(scene: Scene, history: History) -> None:
    """Note the objects in view from poses whose frames were not rendered."""
    views = [view for view in dict.fromkeys(history.views[:-1]) if view not in history.shown]
    shown = [_in_view(scene, views, item) for item in scene.objects] if views else []
    for place, view in enumerate(views):
        history.shown[view] = tuple(item.index for item, seen in zip(scene.objects, shown, strict=True) if seen[place])


def _in_view(scene: Scene, views: Sequence[Pose], item: SceneObject) -> list[bool]:
    """Return for each view whether its frame would show enough of an object, by geometry."""
    pixels = np.zeros(len(views))
    for place, view in enumerate(views):
        bearing, distance = bearing_and_distance(view, item)
        middle = distance + item.radius
        if abs(bearing) <= _EDGE + math.atan(item.radius / middle) / 2:
            pixels[place] = _COVERED * 2 * item.radius * item.disc.height * (FOCAL / middle) ** 2
    large = np.flatnonzero(pixels >= MIN_PIXELS)
    if len(large):
        eyes = np.array([nose_of(views[place]) for place in large.tolist()])
        pixels[large] *= sight_fractions(scene.obstacles, eyes, item.disc)
    return [bool(count >= MIN_PIXELS) for count in pixels]


def remembered_object(scene: Scene, memory: SearchMemory, wanted: Sequence[int]) -> int | None:
    """Return which of the wanted objects stands where the memory has it, None where none does."""
    if memory.last is None or not wanted:
        return None
    last = memory.last
    apart, index = min((math.dist(last, (scene.objects[i].x, scene.objects[i].y)), i) for i in wanted)
    return index if apart <= _SAME_OBJECT else None


def turn_to_remembered(pose: Pose, memory: SearchMemory) -> Decision | None:
    """Return the turn to where the memory has the object that is not there: who knows the memory alone must look."""
    if memory.last is None:
        return None
    bearing = wrap(math.atan2(memory.last[1] - pose.y, memory.last[0] - pose.x) - pose.yaw)
    return Decision(turn_by(bearing), Reason.RETURN) if abs(bearing) > FACING else None
