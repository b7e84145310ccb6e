"""The footprint never enters an obstacle, and distances are what plain trigonometry says."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vlm_nav_simulation.geometry import (
    FOOTPRINT_OFFSETS,
    FOOTPRINT_RADIUS,
    Box,
    Disc,
    Obstacles,
    Pose,
    advance,
    wrap,
)

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
