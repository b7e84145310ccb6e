"""Lines of sight over furniture and objects, by geometry alone: no image is rendered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vlm_nav_simulation.geometry import CAMERA_HEIGHT, Array, Disc, Obstacles

_ACROSS = (-0.6, 0.0, 0.6)
_UP = (0.3, 0.6, 0.85)
_POINTS = len(_ACROSS) * len(_UP)


def sight_fractions(obstacles: Obstacles, eyes: Array, target: Disc) -> Array:
    """Return which part (0..1) of nine points on `target` the camera sees from above each eye [k, 2] -> [k].

    The field of view is left aside. Obstacles count as solid boxes and cylinders, so the answer is on the safe side;
    `target` itself blocks nothing.
    """
    line = np.array([target.x, target.y]) - eyes
    across = np.stack([-line[:, 1], line[:, 0]], axis=1)
    across *= target.radius / np.maximum(1e-9, np.hypot(line[:, 0], line[:, 1]))[:, None]
    ends = line[:, None] + across[:, None] * np.array(_ACROSS)[None, :, None]
    rays = np.repeat(ends, len(_UP), axis=1).reshape(-1, 2)
    falls = np.tile(np.array(_UP) * target.height - CAMERA_HEIGHT, len(eyes) * len(_ACROSS))
    starts = np.repeat(eyes, _POINTS, axis=0)
    blocked = np.zeros(len(rays), dtype=bool)
    for enter, leave, height in _spans(obstacles, starts, rays, target):
        enter, leave = np.maximum(enter, 0.0), np.minimum(leave, 1.0)
        blocked |= (leave > enter) & (CAMERA_HEIGHT + np.minimum(enter * falls, leave * falls) < height)
    seen: Array = 1.0 - blocked.reshape(-1, _POINTS).mean(axis=1)
    return seen


def ranges(obstacles: Obstacles, eye: tuple[float, float], angles: Array) -> Array:
    """Return how far, metres, each ray [n] goes from `eye` until something stands there, however low; else infinite.

    Angles are in the room's frame, radians.
    """
    rays = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    nearest = np.full(len(rays), np.inf)
    for enter, leave, _ in _spans(obstacles, np.tile(np.array(eye, dtype=float), (len(rays), 1)), rays):
        hit = (leave > enter) & (leave > 0.0)
        nearest[hit] = np.minimum(nearest[hit], np.maximum(enter[hit], 0.0))
    return nearest


def _spans(
    obstacles: Obstacles, starts: Array, rays: Array, target: Disc | None = None
) -> Iterator[tuple[Array, Array, float]]:
    """Where each ray (parameter 0..1 along it) enters and leaves each obstacle but `target`, and that one's height."""
    safe = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
    for box in obstacles.boxes:
        near = (np.array([box.x - box.half_x, box.y - box.half_y]) - starts) / safe
        far = (np.array([box.x + box.half_x, box.y + box.half_y]) - starts) / safe
        low, high = np.minimum(near, far), np.maximum(near, far)
        yield np.maximum(low[:, 0], low[:, 1]), np.minimum(high[:, 0], high[:, 1]), box.height
    x, y = rays[:, 0], rays[:, 1]
    a = np.maximum(x * x + y * y, 1e-12)
    for disc in obstacles.discs:
        if disc == target:
            continue
        off_x, off_y = starts[:, 0] - disc.x, starts[:, 1] - disc.y
        b = x * off_x + y * off_y
        root = b * b - a * (off_x * off_x + off_y * off_y - disc.radius**2)
        width = np.sqrt(np.maximum(root, 0.0))
        enter = (-b - width) / a
        yield enter, np.where(root > 0.0, (-b + width) / a, enter), disc.height
