"""What the front camera sees, from ground truth: which object, where, how far, how much of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vlm_nav_simulation.camera import Labels
from vlm_nav_simulation.geometry import Obstacles, Pose, nose_of, wrap
from vlm_nav_simulation.line_of_sight import ranges
from vlm_nav_simulation.scene import Scene, SceneObject
from vlm_nav_simulation.world import World

MIN_PIXELS = 20
"""An object counts as visible from this many pixels of a 224-pixel frame; other sizes scale with the area."""
DOOR_VIEW, DOOR_RANGE, DOOR_DEPTH = math.radians(40.0), (0.3, 5.0), 0.1
"""A doorway is in view up to so far off the axis, within these distances (metres), if nothing stands before it."""
_AHEAD, _SLIGHTLY = math.radians(8.0), math.radians(24.0)


class Side(str, Enum):
    """Where in the image, in the words of the reasoning: limits at 8 and 24 degrees off the axis."""

    LEFT = "left"
    SLIGHTLY_LEFT = "slightly left"
    AHEAD = "ahead"
    SLIGHTLY_RIGHT = "slightly right"
    RIGHT = "right"


@dataclass(frozen=True)
class Sighting:
    """One object in the current frame, seen or not.

    `pixels` are of the visible part; `bearing` is the centre's angle at the camera, radians, counter-clockwise;
    `distance` runs from the nose (the camera, seen from above) to the object's surface, metres, 0 where they touch.
    """

    index: int
    colour: str
    object_class: str
    visible: bool
    pixels: int
    bearing: float
    distance: float
    side: Side


def side_of(bearing: float) -> Side:
    """Return the words for a bearing (radians, counter-clockwise)."""
    if abs(bearing) <= _AHEAD:
        return Side.AHEAD
    if abs(bearing) <= _SLIGHTLY:
        return Side.SLIGHTLY_LEFT if bearing > 0 else Side.SLIGHTLY_RIGHT
    return Side.LEFT if bearing > 0 else Side.RIGHT


def bearing_and_distance(pose: Pose, item: SceneObject) -> tuple[float, float]:
    """Return an object's bearing (radians) and surface distance (metres) from the nose of a robot at `pose`."""
    x, y = nose_of(pose)
    dx, dy = item.x - x, item.y - y
    return wrap(math.atan2(dy, dx) - pose.yaw), max(0.0, math.hypot(dx, dy) - item.radius)


@dataclass(frozen=True)
class Doorway:
    """A doorway in view: `bearing` of its middle at the camera, radians, `distance` from the nose, metres."""

    bearing: float
    distance: float

    @property
    def side(self) -> Side:
        """The side in the words of the reasoning."""
        return side_of(self.bearing)


def doorways(scene: Scene, pose: Pose) -> list[Doorway]:
    """Return the doorways whose middle a camera at `pose` sees, nearest first. By geometry: nothing is rendered."""
    eye, found = nose_of(pose), []
    for door in scene.plan.doorways:
        angle, distance = math.atan2(door.y - eye[1], door.x - eye[0]), math.dist((door.x, door.y), eye)
        bearing = wrap(angle - pose.yaw)
        if abs(bearing) > DOOR_VIEW or not DOOR_RANGE[0] <= distance <= DOOR_RANGE[1]:
            continue
        if ranges(Obstacles(scene.boxes, []), eye, np.array([angle]))[0] >= distance - DOOR_DEPTH:
            found.append(Doorway(bearing, distance))
    return sorted(found, key=lambda door: door.distance)


def observe(world: World, labels: Labels | None = None) -> list[Sighting]:
    """Return a sighting of every object of the scene, in their order. `labels` is `world.segmentation()` if at hand."""
    if labels is None:
        labels = world.segmentation()
    counts = np.bincount(labels.ravel() + 1, minlength=len(world.scene.objects) + 1)[1:]
    enough = MIN_PIXELS * (world.size / 224) ** 2
    sightings = []
    for item in world.scene.objects:
        bearing, distance = bearing_and_distance(world.pose, item)
        pixels = int(counts[item.index])
        visible, side = pixels >= enough, side_of(bearing)
        sightings.append(Sighting(item.index, item.colour, item.object_class, visible, pixels, bearing, distance, side))
    return sightings
