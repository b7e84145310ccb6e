"""The footprint never enters an obstacle, and distances and paths are what plain trigonometry and Dijkstra say."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vlm_nav_simulation.geometry import (
    FOOTPRINT_OFFSETS,
    FOOTPRINT_RADIUS,
    Array,
    Box,
    Disc,
    Obstacles,
    Pose,
    advance,
    wrap,
)
from vlm_nav_simulation.paths import NEIGHBOURS, Mask, PathGrid

ROOM = (
    Box("wall", 0, -2.03, 2, 0.03, 2.5),
    Box("wall", 0, 2.03, 2, 0.03, 2.5),
    Box("wall", -2.03, 0, 0.03, 2, 2.5),
    Box("wall", 2.03, 0, 0.03, 2, 2.5),
    Box("table", 0.9, 0.6, 0.4, 0.3, 0.6),
)
OBSTACLES = Obstacles(ROOM, [Disc(-0.8, 0.7, 0.2, 0.4), Disc(-0.5, -1.0, 0.06, 0.3)])

coordinate = st.floats(-1.9, 1.9)
poses = st.builds(Pose, coordinate, coordinate, st.floats(-math.pi, math.pi))
PLACES = ((0.9, 0.6, 0.4, 0.3), (-0.8, 0.7, 0.15, 0.15), (-0.5, -1.0, 0.1, 0.1), (1.9, 0.0, 0.05, 1.9))
"""The table, both discs and a wall: centre, and how far about it a robot touches them."""
inside = st.one_of(
    *(
        st.builds(Pose, st.floats(x - by_x, x + by_x), st.floats(y - by_y, y + by_y), st.floats(-math.pi, math.pi))
        for x, y, by_x, by_y in PLACES
    )
)
moves = st.tuples(st.floats(-1, 1), st.floats(-0.5, 0.5), st.floats(-2, 2))


def distance_to(point: tuple[float, float], obstacle: Box | Disc) -> float:
    """Signed distance, one point and one obstacle at a time."""
    x, y = point[0] - obstacle.x, point[1] - obstacle.y
    if isinstance(obstacle, Disc):
        return math.hypot(x, y) - obstacle.radius
    over_x, over_y = abs(x) - obstacle.half_x, abs(y) - obstacle.half_y
    if over_x <= 0 and over_y <= 0:
        return max(over_x, over_y)
    return math.hypot(max(over_x, 0), max(over_y, 0))


def slow_footprint_clearance(pose: Pose) -> float:
    centres = [(pose.x + o * math.cos(pose.yaw), pose.y + o * math.sin(pose.yaw)) for o in FOOTPRINT_OFFSETS]
    things: list[Box | Disc] = [*OBSTACLES.boxes, *OBSTACLES.discs]
    return min(distance_to(centre, thing) for centre in centres for thing in things) - FOOTPRINT_RADIUS


@settings(max_examples=60, deadline=None)
@given(poses)
def test_clearance_equals_its_plain_twin(pose: Pose) -> None:
    assert OBSTACLES.footprint_clearance(pose) == pytest.approx(slow_footprint_clearance(pose), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(poses, st.lists(moves, min_size=1, max_size=6))
def test_no_sequence_of_moves_penetrates_anything(pose: Pose, sequence: list[tuple[float, float, float]]) -> None:
    assume(slow_footprint_clearance(pose) >= 0.0)
    for move in sequence:
        pose, _ = advance(OBSTACLES, pose, *move)
        assert slow_footprint_clearance(pose) >= -1e-9


@settings(max_examples=60, deadline=None)
@given(inside, moves)
def test_a_robot_inside_something_only_gets_freer(pose: Pose, move: tuple[float, float, float]) -> None:
    before = slow_footprint_clearance(pose)
    assert before < 0.0
    after, _ = advance(OBSTACLES, pose, *move)
    assert slow_footprint_clearance(after) >= before - 1e-9


def test_a_free_move_is_exact_and_a_wall_stops_it() -> None:
    empty = Obstacles([], [])
    pose, blocked = advance(empty, Pose(0, 0, math.pi / 2), 0.5, 0.1, 0.0)
    assert not blocked
    assert pose == pytest.approx((-0.1, 0.5, math.pi / 2))
    pose, blocked = advance(empty, Pose(0, 0, 3.0), 0.0, 0.0, 0.5)
    assert pose.yaw == pytest.approx(wrap(3.5))
    pose, blocked = advance(OBSTACLES, Pose(0, -1.5, 0), 5.0, 0.0, 0.0)
    assert blocked
    assert 2.0 - 0.02 <= pose.x + FOOTPRINT_OFFSETS[-1] + FOOTPRINT_RADIUS <= 2.0


SHELF = Obstacles(
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
    grid = PathGrid(SHELF, 1.5, 1.5)
    goals = np.zeros(grid.free.shape, dtype=bool)
    goals[grid.cell_of(1.1, -1.0)] = goals[grid.cell_of(-1.2, 1.0)] = True
    rng = np.random.default_rng(0)
    factors = rng.uniform(1, 4, (len(NEIGHBOURS), *grid.free.shape)) if weighted else None
    np.testing.assert_allclose(grid.field(goals, factors), dijkstra(grid, goals, factors), rtol=1e-12)
