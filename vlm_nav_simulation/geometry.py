"""Flat geometry of robot and room: poses, the footprint, distances to obstacles, sliding motion.

Metres and radians in the room's frame: x right, y up in the top view, yaw counter-clockwise (REP 103).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

NOSE = 0.327
"""The front camera, ahead of the base centre; the robot's nose."""
CAMERA_HEIGHT = 0.378
"""Camera above the floor while the robot stands."""
FOOTPRINT_OFFSETS = (-0.19, -0.095, 0.0, 0.095, 0.19)
FOOTPRINT_RADIUS = 0.165
"""The footprint is a row of discs along the body: 0.71 m by 0.33 m."""
TURN_RADIUS = FOOTPRINT_OFFSETS[-1] + FOOTPRINT_RADIUS
"""Circle that the footprint sweeps when it turns on the spot."""
_STEP = 0.02


class Pose(NamedTuple):
    """Base centre and heading."""

    x: float
    y: float
    yaw: float


class CameraMount(NamedTuple):
    """How the front camera looks from the robot's nose. The default is the Go2's, as the embedded pair knows it."""

    height_m: float = CAMERA_HEIGHT
    """Above the floor while the robot stands."""
    pitch_deg: float = 0.0
    """Down is positive."""
    fov_deg: float = 90.0
    """Field of view of its square frames, from edge to edge."""


GO2_MOUNT = CameraMount()


@dataclass(frozen=True)
class Box:
    """An axis-aligned obstacle standing on the floor."""

    name: str
    x: float
    y: float
    half_x: float
    half_y: float
    height: float


@dataclass(frozen=True)
class Disc:
    """A round obstacle standing on the floor."""

    x: float
    y: float
    radius: float
    height: float


def wrap(angle: float) -> float:
    """Return the angle in [-pi, pi)."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def nose_of(pose: Pose) -> tuple[float, float]:
    """Return where the camera is, seen from above."""
    return pose.x + NOSE * math.cos(pose.yaw), pose.y + NOSE * math.sin(pose.yaw)


class Obstacles:
    """Boxes and discs as arrays, for distances of many points at once."""

    def __init__(self, boxes: Sequence[Box], discs: Sequence[Disc]) -> None:
        self.boxes, self.discs = tuple(boxes), tuple(discs)
        self._boxes = np.array([(b.x, b.y, b.half_x, b.half_y) for b in boxes], dtype=float).reshape(-1, 4)
        self._discs = np.array([(d.x, d.y, d.radius) for d in discs], dtype=float).reshape(-1, 3)

    def distances(self, points: Array) -> Array:
        """Signed distance of each point [k, 2] to each obstacle -> [k, boxes + discs]; negative inside."""
        x, y = points[:, :1], points[:, 1:]
        over_x = np.abs(x - self._boxes[:, 0]) - self._boxes[:, 2]
        over_y = np.abs(y - self._boxes[:, 1]) - self._boxes[:, 3]
        outside = np.hypot(np.maximum(over_x, 0.0), np.maximum(over_y, 0.0))
        to_boxes = outside + np.minimum(np.maximum(over_x, over_y), 0.0)
        to_discs = np.hypot(x - self._discs[:, 0], y - self._discs[:, 1]) - self._discs[:, 2]
        return np.concatenate([to_boxes, to_discs], axis=1)

    def clearance(self, points: Array) -> Array:
        """Signed distance of each point [k, 2] to the nearest obstacle -> [k]."""
        nearest: Array = self.distances(points).min(axis=1, initial=math.inf)
        return nearest

    def footprint_clearance(self, pose: Pose) -> float:
        """Free space around the robot's footprint, negative where it penetrates."""
        offsets = np.array(FOOTPRINT_OFFSETS)[:, None]
        centres = np.array(pose[:2]) + offsets * np.array([math.cos(pose.yaw), math.sin(pose.yaw)])
        return float(self.clearance(centres).min()) - FOOTPRINT_RADIUS


def advance(obstacles: Obstacles, pose: Pose, forward: float, left: float, turn: float) -> tuple[Pose, bool]:
    """Move by a body-frame displacement until something is in the way; return the pose and whether it was.

    Translation and turn are tried separately in steps of at most 2 cm, so that a robot at a wall can still turn away.
    A step is allowed when the footprint stays clear, or gets freer than it was.
    """
    steps = max(1, math.ceil(max(math.hypot(forward, left), TURN_RADIUS * abs(turn)) / _STEP))
    blocked = False
    clear = obstacles.footprint_clearance(pose)
    for _ in range(steps):
        for along, across, about in ((forward, left, 0.0), (0.0, 0.0, turn)):
            if along == across == about == 0.0:
                continue
            cos, sin = math.cos(pose.yaw) / steps, math.sin(pose.yaw) / steps
            ahead = Pose(
                pose.x + cos * along - sin * across, pose.y + sin * along + cos * across, wrap(pose.yaw + about / steps)
            )
            free = obstacles.footprint_clearance(ahead)
            if free >= 0.0 or free > clear:
                pose, clear = ahead, free
            else:
                blocked = True
    return pose, blocked
