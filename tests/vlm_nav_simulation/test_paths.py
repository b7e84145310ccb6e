"""Path fields against a textbook Dijkstra, reachable cells against a flood fill."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from vlm_nav_simulation.geometry import Array, Box, Disc, Obstacles
from vlm_nav_simulation.paths import NEIGHBOURS, Mask, PathGrid

OBSTACLES = Obstacles(
    [Box("shelf", 0.0, -0.6, 0.15, 0.9, 1.0), Box("wall", 0, 1.53, 1.5, 0.03, 2.5)], [Disc(0.8, 0.6, 0.15, 0.4)]
)


def dijkstra(grid: PathGrid, goals: Mask, factors: Array | None) -> Array:
    cost, shape = grid._cost, grid.free.shape
    best = np.full(shape, math.inf)
    queue = [(0.0, int(i), int(j)) for i, j in np.argwhere(goals & np.isfinite(cost))]
    for _, i, j in queue:
        best[i, j] = 0.0
    heapq.heapify(queue)
    while queue:
        value, i, j = heapq.heappop(queue)
        if value > best[i, j]:
            continue
        for k, (di, dj, length) in enumerate(NEIGHBOURS):
            a, b = i - di, j - dj
            if 0 <= a < shape[0] and 0 <= b < shape[1]:
                new = value + length * cost[a, b] * (1.0 if factors is None else factors[k, a, b])
                if new < best[a, b]:
                    best[a, b] = new
                    heapq.heappush(queue, (new, a, b))
    return best


@pytest.mark.parametrize("weighted", [False, True])
def test_field_equals_dijkstra(weighted: bool) -> None:
    grid = PathGrid(OBSTACLES, 1.5, 1.5)
    goals = np.zeros(grid.free.shape, dtype=bool)
    goals[grid.cell_of(1.1, -1.0)] = goals[grid.cell_of(-1.2, 1.0)] = True
    rng = np.random.default_rng(0)
    factors = rng.uniform(1, 4, (len(NEIGHBOURS), *grid.free.shape)) if weighted else None
    np.testing.assert_allclose(grid.field(goals, factors), dijkstra(grid, goals, factors), rtol=1e-12)


def test_reachable_is_what_a_flood_fill_reaches() -> None:
    divided = Obstacles([Box("wall", 0.0, 0.0, 0.05, 2.0, 2.5)], [])
    grid = PathGrid(divided, 1.5, 1.5)
    left = grid.reachable(-1.0, 0.0)
    assert np.array_equal(left, grid.free & (grid.centres[..., 0] < 0))
    assert not grid.reachable(0.0, 0.0).any()
