"""Ways through a room: a grid of clearances and, per goal, the distance still to walk from every cell."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from vlm_nav_simulation.geometry import TURN_RADIUS, Array, Obstacles

CELL = 0.10
SAFE_RADIUS = TURN_RADIUS + 0.02
"""Clearance around the base centre that lets the robot turn on the spot everywhere on its way."""
_TIGHT, _TIGHT_COST = 0.25, 6.0
_COMFORT, _COMFORT_COST = 0.50, 1.6
_SPAN = 2
NEIGHBOURS = tuple(
    (i, j, math.hypot(i, j) * CELL)
    for i in range(-_SPAN, _SPAN + 1)
    for j in range(-_SPAN, _SPAN + 1)
    if math.gcd(i, j) == 1
)
"""Sixteen steps between cells (king's and knight's moves) and their lengths in metres."""

Mask = npt.NDArray[np.bool_]


class PathGrid:
    """Cells of 10 cm over a room of the given half extents (metres), centred at the origin."""

    def __init__(self, obstacles: Obstacles, half_x: float, half_y: float) -> None:
        self._origin = np.array([-half_x, -half_y])
        shape = (int(2 * half_x / CELL) + 1, int(2 * half_y / CELL) + 1)
        self.centres: Array = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=2) * CELL + self._origin
        self.clearance: Array = obstacles.clearance(self.centres.reshape(-1, 2)).reshape(shape)
        self.free: Mask = self.clearance >= SAFE_RADIUS
        cost = np.where(self.clearance >= _COMFORT, 1.0, _COMFORT_COST)
        cost = np.where(self.free, cost, _TIGHT_COST)
        self._cost = np.where(self.clearance >= _TIGHT, cost, np.inf)

    def cell_of(self, x: float, y: float) -> tuple[int, int]:
        """Return the cell that holds a point, the nearest one for a point outside."""
        i, j = np.rint((np.array([x, y]) - self._origin) / CELL).astype(int)
        return int(np.clip(i, 0, self.free.shape[0] - 1)), int(np.clip(j, 0, self.free.shape[1] - 1))

    def reachable(self, x: float, y: float) -> Mask:
        """Return the free cells that are connected to the point's cell through free cells, corners included."""
        _, parts = cv2.connectedComponents(self.free.astype(np.uint8), connectivity=8)
        connected: Mask = (parts == parts[self.cell_of(x, y)]) & self.free
        return connected

    def field(self, goals: Mask, factors: Array | None = None) -> Array:
        """Return the cost in metres from every cell to the nearest goal; inf where there is no way.

        Cells near obstacles cost more, cells too tight for a turn much more, so that ways keep clear where they can.
        `factors` [16, rows, columns] multiply the cost of leaving a cell towards each of NEIGHBOURS.
        """
        weights = np.ones(len(NEIGHBOURS)) if factors is None else factors
        prices = [length * self._cost * weight for (_, _, length), weight in zip(NEIGHBOURS, weights, strict=True)]
        padded = np.full(np.add(self.free.shape, 2 * _SPAN), np.inf)
        inner = padded[_SPAN:-_SPAN, _SPAN:-_SPAN]
        inner[goals & np.isfinite(self._cost)] = 0.0
        rows, columns = self.free.shape
        while True:
            before: Array = inner.copy()
            for (i, j, _), price in zip(NEIGHBOURS, prices, strict=True):
                shifted = padded[_SPAN + i : _SPAN + i + rows, _SPAN + j : _SPAN + j + columns]
                np.minimum(inner, shifted + price, out=inner)
            if np.array_equal(before, inner):
                return before

    def sample(self, field: Array, points: Array) -> Array:
        """Read a field at points [k, 2], bilinear where all four corners are finite, else the nearest cell -> [k]."""
        at = (points - self._origin) / CELL
        low = np.clip(np.floor(at).astype(int), 0, np.array(field.shape) - 2)
        part = np.clip(at - low, 0.0, 1.0)
        i, j, u, v = low[:, 0], low[:, 1], part[:, 0], part[:, 1]
        corners = np.stack([field[i, j], field[i + 1, j], field[i, j + 1], field[i + 1, j + 1]])
        weights = np.stack([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v])
        finite = np.isfinite(corners).all(axis=0)
        smooth = (np.where(np.isfinite(corners), corners, 0.0) * weights).sum(axis=0)
        result: Array = np.where(finite, smooth, corners[weights.argmax(axis=0), np.arange(len(points))])
        return result
