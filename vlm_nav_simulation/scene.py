"""Seeded rooms: what stands where, what to find, and where the robot starts. Layout only; see `mujoco_scene.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from speculation.language.prompts import Target
from vlm_nav_simulation.geometry import NOSE, Box, Disc, Obstacles, Pose, wrap
from vlm_nav_simulation.layouts import Area, FloorPlan, Layout, furnish, sample_plan
from vlm_nav_simulation.line_of_sight import sight_fractions
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.paths import Mask, PathGrid

UNSEEN_SEED = 1_000_000
"""Scenes from this seed on are never trained on; benchmarks and sample bags take theirs from here."""

REACHED_GAP = 0.60
"""Nose to object surface, metres: at most this, and the object counts as reached."""
MAX_SEED = 2**31 - 1
_ATTEMPTS = 400
_DRAWS = 60
_FARTHER = 1.5
"""Where the target is in another area, it may be this much farther away than the level's range."""
_DOOR_CLEAR = 0.35
"""Free space around a doorway besides an object's radius, metres."""


class StartHeading(Enum):
    """How the start heading relates to the target."""

    TARGET_IN_VIEW = "the target is at most 30 degrees off the camera's axis, in plain sight"
    ANY = "any heading, so that the target may or may not be in view"
    TARGET_OUT_OF_VIEW = "the target is at least 75 degrees off the camera's axis"


@dataclass(frozen=True)
class Level:
    """What a difficulty means. Distances are from the base centre to the target's surface, metres."""

    distractors: tuple[int, int]
    start_distance: tuple[float, float]
    heading: StartHeading
    line_of_sight: bool
    room: tuple[float, float]


class Difficulty(Enum):
    """Three levels; `value` is the frozen definition. Ranges are inclusive; `room` is the range of both room sides."""

    EASY = Level((1, 2), (1.2, 2.2), StartHeading.TARGET_IN_VIEW, True, (4.2, 6.0))
    MIDDLE = Level((2, 4), (1.6, 3.2), StartHeading.ANY, True, (4.4, 6.6))
    HARD = Level((4, 6), (2.5, 4.5), StartHeading.TARGET_OUT_OF_VIEW, False, (5.2, 7.0))


@dataclass(frozen=True)
class SceneObject:
    """Something that can be found. `radius` and `height` are metres at its scale."""

    index: int
    colour: str
    object_class: str
    x: float
    y: float
    yaw: float
    scale: float

    @property
    def target(self) -> Target:
        """The words for it."""
        return Target(self.colour, self.object_class)

    @property
    def radius(self) -> float:
        """Footprint radius."""
        return CLASSES[self.object_class].radius * self.scale

    @property
    def height(self) -> float:
        """Top above the floor."""
        return CLASSES[self.object_class].height * self.scale

    @property
    def disc(self) -> Disc:
        """The obstacle that it is."""
        return Disc(self.x, self.y, self.radius, self.height)


@dataclass(frozen=True)
class Scene:
    """A furnished floor plan centred at the origin. `boxes` are the outer walls (first four), the walls between areas
    and the furniture; pairs of colour and class are unique. Equal arguments of `make_scene` give equal scenes."""

    seed: int
    difficulty: Difficulty
    half_x: float
    half_y: float
    boxes: tuple[Box, ...]
    objects: tuple[SceneObject, ...]
    target_index: int
    start: Pose
    plan: FloorPlan
    layout: Layout = Layout.ROOM

    @property
    def target(self) -> Target:
        """What the robot shall find."""
        return self.objects[self.target_index].target

    @property
    def furniture(self) -> tuple[Box, ...]:
        """The boxes that are no walls."""
        return tuple(box for box in self.boxes if box.name != "wall")

    def area_at(self, x: float, y: float) -> Area:
        """Return the area that a point lies in, the nearest one for a point in a wall or doorway."""
        return min(self.plan.areas, key=lambda a: max(abs(x - a.x) - a.half_x, abs(y - a.y) - a.half_y))

    @cached_property
    def obstacles(self) -> Obstacles:
        """Everything the robot can bump into; the discs are the objects in their order."""
        return Obstacles(self.boxes, [item.disc for item in self.objects])

    @cached_property
    def grid(self) -> PathGrid:
        """Clearances for planning."""
        return PathGrid(self.obstacles, self.half_x, self.half_y)

    def goals(self, index: int) -> Mask:
        """Free grid cells from which object `index` is reached when the robot faces it, in sight of it."""
        disc = self.objects[index].disc
        x, y = self.grid.centres[..., 0] - disc.x, self.grid.centres[..., 1] - disc.y
        near: Mask = self.grid.free & (np.hypot(x, y) - disc.radius <= NOSE + REACHED_GAP - 0.08)
        near[near] = sight_fractions(self.obstacles, self.grid.centres[near], disc) >= 0.5
        return near


def make_scene(seed: int, difficulty: Difficulty, target: Target | None = None, layout: Layout = Layout.ROOM) -> Scene:
    """Return the scene of this seed; a random target where none is given.

    Every object can be walked up to from the start. Raises ValueError for an unknown colour or class and for a seed
    outside 0..MAX_SEED.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed {seed} is outside 0..{MAX_SEED}")
    if target is not None:
        _check_target(target)
    # the single room came first: its random numbers must stay as they were
    key = [seed, list(Difficulty).index(difficulty), *([] if layout is Layout.ROOM else [list(Layout).index(layout)])]
    rng = np.random.default_rng(key)
    for _ in range(_ATTEMPTS):
        scene = _try_scene(rng, seed, difficulty, target, layout)
        if scene is not None and _all_reachable(scene):
            return scene
    name = f"{difficulty.name} {layout.value}"
    raise RuntimeError(f"no {name} scene found for seed {seed} in {_ATTEMPTS} attempts; use another seed")


def scene_of(seed: int, difficulty: str, target: str, layout: str = Layout.ROOM.value) -> Scene:
    """Return the scene that words name; an empty target leaves it to the seed.

    Raises ValueError, naming what is known, for an unknown difficulty, layout or target text.
    """
    try:
        level = Difficulty[difficulty.upper()]
    except KeyError:
        known = ", ".join(entry.name.lower() for entry in Difficulty)
        raise ValueError(f"unknown difficulty {difficulty!r}; known are {known}") from None
    if layout not in list(Layout):
        raise ValueError(f"unknown layout {layout!r}; known are {', '.join(entry.value for entry in Layout)}")
    words = target.split()
    if target and len(words) != 2:
        raise ValueError(f"target {target!r} must be a colour and a class, e.g. 'silver bottle'")
    return make_scene(seed, level, Target(*words) if words else None, Layout(layout))


def _check_target(target: Target) -> None:
    if target.colour not in COLOURS:
        raise ValueError(f"target colour {target.colour!r} is not one of {', '.join(COLOURS)}")
    if target.object_class not in CLASSES:
        raise ValueError(f"target class {target.object_class!r} is not one of {', '.join(CLASSES)}")


def _try_scene(
    rng: np.random.Generator, seed: int, difficulty: Difficulty, target: Target | None, layout: Layout
) -> Scene | None:
    level = difficulty.value
    plan = sample_plan(rng, layout, level.room)
    boxes = [*plan.walls, *furnish(rng, plan)]
    things = list(_things(rng, level, target))
    placed: list[SceneObject] = []
    start = _free_point(rng, Obstacles(boxes, []), plan.areas[plan.start], 0.5)
    if start is None:
        return None
    for index, thing in enumerate(things):
        item = _place(rng, index, thing, level, boxes, placed, start, plan)
        if item is None:
            return None
        placed.append(item)
    goal = placed[0]
    if level.line_of_sight and not _in_sight(start, goal, boxes, placed):
        return None
    pose = Pose(*start, _heading(rng, level.heading, start, goal))
    # the target's index must not give it away
    order = rng.permutation(len(placed))
    objects = tuple(
        SceneObject(i, o.colour, o.object_class, o.x, o.y, o.yaw, o.scale)
        for i, o in enumerate(placed[k] for k in order)
    )
    chosen = int(np.argmin(order))
    return Scene(seed, difficulty, plan.half_x, plan.half_y, tuple(boxes), objects, chosen, pose, plan, layout)


def _things(rng: np.random.Generator, level: Level, target: Target | None) -> Iterator[Target]:
    """The target, its look-alikes (same class, other colour; same colour, other class), then anything else."""
    colours, classes = list(COLOURS), list(CLASSES)
    goal = target or Target(str(rng.choice(colours)), str(rng.choice(classes)))
    twins = [
        Target(str(rng.choice([c for c in colours if c != goal.colour])), goal.object_class),
        Target(goal.colour, str(rng.choice([c for c in classes if c != goal.object_class]))),
    ]
    things = [goal, *(twins[i] for i in rng.permutation(2))]
    while len(things) < 1 + level.distractors[1]:
        other = Target(str(rng.choice(colours)), str(rng.choice(classes)))
        if other not in things:
            things.append(other)
    yield from things[: 1 + int(rng.integers(level.distractors[0], level.distractors[1] + 1))]


def _free_point(
    rng: np.random.Generator, obstacles: Obstacles, area: Area, clearance: float
) -> tuple[float, float] | None:
    x = rng.uniform(area.x - area.half_x, area.x + area.half_x, _DRAWS)
    y = rng.uniform(area.y - area.half_y, area.y + area.half_y, _DRAWS)
    points = np.stack([x, y], axis=1)
    good = np.flatnonzero(obstacles.clearance(points) >= clearance)
    return (float(points[good[0], 0]), float(points[good[0], 1])) if len(good) else None


def _place(
    rng: np.random.Generator,
    index: int,
    thing: Target,
    level: Level,
    boxes: list[Box],
    placed: list[SceneObject],
    start: tuple[float, float],
    plan: FloorPlan,
) -> SceneObject | None:
    scale, yaw = float(rng.uniform(0.92, 1.1)), float(rng.uniform(-math.pi, math.pi))
    radius = CLASSES[thing.object_class].radius * scale
    others = Obstacles([], [item.disc for item in placed])
    furniture, doorways = Obstacles(boxes, []), Obstacles(plan.doorways, [])
    farther = _FARTHER if len(plan.areas) > 1 else 1.0
    for _ in range(_DRAWS):
        if index == 0:
            away = rng.uniform(level.start_distance[0], level.start_distance[1] * farther) + radius
            angle = rng.uniform(-math.pi, math.pi)
            x, y = start[0] + away * math.cos(angle), start[1] + away * math.sin(angle)
            if not any(area.holds(x, y) for area in plan.goals):
                continue
        else:
            x, y = rng.uniform(-plan.half_x, plan.half_x), rng.uniform(-plan.half_y, plan.half_y)
        point = np.array([[x, y]])
        if furniture.clearance(point)[0] < radius + 0.06 or others.clearance(point)[0] < radius + 0.30:
            continue
        if doorways.clearance(point)[0] < radius + _DOOR_CLEAR:
            continue
        if math.hypot(x - start[0], y - start[1]) < radius + 0.75:
            continue
        item = SceneObject(index, thing.colour, thing.object_class, float(x), float(y), yaw, scale)
        if index and level.line_of_sight and not _in_sight(start, placed[0], boxes, [*placed, item]):
            continue
        if not index and level.line_of_sight and plan.doorways and not _in_sight(start, item, boxes, [item]):
            continue
        return item
    return None


def _in_sight(start: tuple[float, float], goal: SceneObject, boxes: list[Box], placed: list[SceneObject]) -> bool:
    towards = math.atan2(goal.y - start[1], goal.x - start[0])
    eye = np.array([[start[0] + NOSE * math.cos(towards), start[1] + NOSE * math.sin(towards)]])
    return bool(sight_fractions(Obstacles(boxes, [item.disc for item in placed]), eye, goal.disc)[0] == 1.0)


def _heading(rng: np.random.Generator, heading: StartHeading, start: tuple[float, float], goal: SceneObject) -> float:
    towards = math.atan2(goal.y - start[1], goal.x - start[0])
    if heading is StartHeading.ANY:
        return float(rng.uniform(-math.pi, math.pi))
    if heading is StartHeading.TARGET_IN_VIEW:
        # 30 degrees at the camera, which stands ahead of the base centre
        return wrap(towards + float(rng.uniform(-1, 1)) * math.radians(22))
    return wrap(towards + float(rng.choice([-1, 1]) * rng.uniform(math.radians(75), math.pi)))


def _all_reachable(scene: Scene) -> bool:
    reachable = scene.grid.reachable(scene.start.x, scene.start.y)
    return bool(reachable.any()) and all(bool((scene.goals(i) & reachable).any()) for i in range(len(scene.objects)))
