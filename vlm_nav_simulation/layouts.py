"""Floor plans: which rectangles of floor there are, the walls and doorways between them, and the furniture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vlm_nav_simulation.geometry import Box

WALL_HEIGHT = 2.5
WALL_THICKNESS = 0.06
DOOR_HEIGHT = 2.05
_FURNITURE = {
    "table": ((0.45, 0.65), 0.35, 0.62),
    "sofa": ((0.60, 0.85), 0.38, 0.72),
    "shelf": ((0.35, 0.60), 0.16, 1.40),
}
"""Furniture's half length (range), half depth and height, metres."""
_PARTITION = 0.05
_DOOR = (1.15, 1.45)
_DOOR_CLEAR = 0.6
_NARROW = 1.3


class Layout(str, Enum):
    """Kinds of floor plan. Where there are several areas, the target never stands in the one the robot starts in."""

    ROOM = "room"
    TWO_ROOMS = "two_rooms"
    HALLWAY = "hallway"


@dataclass(frozen=True)
class Area:
    """A rectangle of floor between walls: centre and half sides, metres."""

    x: float
    y: float
    half_x: float
    half_y: float

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point lies in it."""
        return abs(x - self.x) <= self.half_x and abs(y - self.y) <= self.half_y


@dataclass(frozen=True)
class FloorPlan:
    """Areas within outer walls of the given half sides around the origin; the robot starts in `areas[start]`.

    `partitions` are the walls between areas, `doorways` the gaps in them (height: of the opening).
    """

    half_x: float
    half_y: float
    areas: tuple[Area, ...]
    start: int = 0
    partitions: tuple[Box, ...] = ()
    doorways: tuple[Box, ...] = ()

    @property
    def walls(self) -> Iterator[Box]:
        """The four outer walls, then the partitions."""
        half_x, half_y, thick = self.half_x, self.half_y, WALL_THICKNESS / 2
        for sign in (-1, 1):
            yield Box("wall", 0.0, sign * (half_y + thick), half_x + 2 * thick, thick, WALL_HEIGHT)
        for sign in (-1, 1):
            yield Box("wall", sign * (half_x + thick), 0.0, thick, half_y + 2 * thick, WALL_HEIGHT)
        yield from self.partitions

    @property
    def goals(self) -> tuple[Area, ...]:
        """Where the target may stand."""
        return self.areas if len(self.areas) == 1 else self.areas[: self.start] + self.areas[self.start + 1 :]


def sample_plan(rng: np.random.Generator, layout: Layout, sides: tuple[float, float]) -> FloorPlan:
    """Return a random plan of a layout; `sides` is the range of both sides of a single room, metres."""
    if layout is Layout.TWO_ROOMS:
        return _two_rooms(rng)
    if layout is Layout.HALLWAY:
        return _hallway(rng)
    half_x, half_y = (float(side) / 2 for side in rng.uniform(*sides, 2))
    return FloorPlan(half_x, half_y, (Area(0.0, 0.0, half_x, half_y),))


def _two_rooms(rng: np.random.Generator) -> FloorPlan:
    left, right = (float(width) for width in rng.uniform(3.4, 4.6, 2))
    half_x, half_y = (left + right) / 2 + _PARTITION, float(rng.uniform(3.8, 5.4)) / 2
    x = left - half_x + _PARTITION
    wall, door = _wall_with_door(rng, x, 0.0, half_y, along_x=False)
    areas = (Area(left / 2 - half_x, 0.0, left / 2, half_y), Area(half_x - right / 2, 0.0, right / 2, half_y))
    return FloorPlan(half_x, half_y, areas, int(rng.integers(2)), wall, (door,))


def _hallway(rng: np.random.Generator) -> FloorPlan:
    """A corridor with two rooms on one of its long sides; the robot starts in the corridor."""
    width, depth = float(rng.uniform(1.7, 2.1)), float(rng.uniform(3.0, 3.8))
    half_x, half_y = float(rng.uniform(6.6, 8.2)) / 2, (width + depth) / 2 + _PARTITION
    up, split = float(rng.choice([-1, 1])), float(rng.uniform(-0.4, 0.4))
    across, middle = up * (width + _PARTITION - half_y), up * (half_y - depth / 2)
    walls = [Box("wall", split, middle, _PARTITION, depth / 2, WALL_HEIGHT)]
    areas, doors = [Area(0.0, up * (width / 2 - half_y), half_x, width / 2)], []
    for side in (-1, 1):
        inner, outer = split + side * _PARTITION, side * half_x
        areas.append(Area((inner + outer) / 2, middle, abs(outer - inner) / 2, depth / 2))
        # the wall reaches over the end of the one between the rooms
        wall, door = _wall_with_door(rng, (split + outer) / 2, across, abs(outer - split) / 2, along_x=True)
        walls += wall
        doors.append(door)
    return FloorPlan(half_x, half_y, tuple(areas), 0, tuple(walls), tuple(doors))


def _wall_with_door(
    rng: np.random.Generator, x: float, y: float, reach: float, along_x: bool
) -> tuple[tuple[Box, Box], Box]:
    """Two pieces of wall on a line of half length `reach` around (x, y), and the doorway between them."""
    door = float(rng.uniform(*_DOOR)) / 2
    at = float(rng.uniform(-1, 1)) * (reach - door - 0.4)

    def piece(name: str, low: float, high: float, height: float) -> Box:
        middle, half = (low + high) / 2, (high - low) / 2
        if along_x:
            return Box(name, x + middle, y, half, _PARTITION, height)
        return Box(name, x, y + middle, _PARTITION, half, height)

    pieces = piece("wall", -reach, at - door, WALL_HEIGHT), piece("wall", at + door, reach, WALL_HEIGHT)
    return pieces, piece("doorway", at - door, at + door, DOOR_HEIGHT)


def furnish(rng: np.random.Generator, plan: FloorPlan) -> Iterator[Box]:
    """Yield two to four pieces for a single room, one or two for each of several areas; doorways stay clear.

    Most stand along the walls; now and then a low table stands in a room. A narrow area takes shelves only.
    """
    for area in plan.areas:
        yield from _furnish(rng, area, plan.doorways, (2, 5) if len(plan.areas) == 1 else (1, 3))


def _furnish(rng: np.random.Generator, area: Area, doorways: tuple[Box, ...], pieces: tuple[int, int]) -> Iterator[Box]:
    names = ["table", "sofa", "shelf"] if min(area.half_x, area.half_y) > _NARROW else ["shelf"]
    half_x, half_y = area.half_x, area.half_y
    placed: list[Box] = []
    for _ in range(int(rng.integers(*pieces))):
        name = str(rng.choice(names))
        (low, high), depth, height = _FURNITURE[name]
        length, side = float(rng.uniform(low, high)), float(rng.choice([-1, 1]))
        if name == "table" and rng.random() < 0.2:
            x, y, across, along, height = float(rng.uniform(-0.5, 0.5)), float(rng.uniform(-0.5, 0.5)), 0.45, 0.3, 0.42
        elif rng.random() < 0.5:
            x, y, across, along = float(rng.uniform(-1, 1)) * (half_x - length), side * (half_y - depth), length, depth
        else:
            x, y, across, along = side * (half_x - depth), float(rng.uniform(-1, 1)) * (half_y - length), depth, length
        box = Box(name, area.x + x, area.y + y, across, along, height)
        in_the_way = any(overlap(box, door, _DOOR_CLEAR) for door in doorways)
        if not in_the_way and not any(overlap(box, other, 0.1) for other in placed):
            placed.append(box)
            yield box


def overlap(one: Box, other: Box, gap: float) -> bool:
    """Return whether two boxes come nearer than `gap` metres along both axes."""
    apart_x = abs(one.x - other.x) - one.half_x - other.half_x
    apart_y = abs(one.y - other.y) - one.half_y - other.half_y
    return max(apart_x, apart_y) <= gap
