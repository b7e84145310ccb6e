"""The collision guard, and how it reads sensors."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spec_vlm_nav.diagnostics import Level
from spec_vlm_nav.guard import Guard, GuardSettings, cloud_points, range_points, scan_points
from spec_vlm_nav.safety import Velocity

AHEAD = Velocity(0.4, 0.1, 0.5)
SETTINGS = GuardSettings(guard="cloud", guard_points=2)
FREE = [[5.0, 0.0, 0.0]]


def limited(points: list[list[float]], settings: GuardSettings = SETTINGS) -> Velocity:
    guard = Guard(settings)
    guard.see(np.array(points, dtype=float).reshape(-1, 3), 10.0)
    return guard.limit(AHEAD, 10.1)


@pytest.mark.parametrize(
    "point,share",
    [
        ((0.40, 0.0, 0.0), 0.0),
        ((0.60, -0.2, 0.2), 0.0),
        ((0.80, 0.2, 0.0), 0.5),
        ((1.10, 0.0, 0.0), 1.0),
        ((0.30, 0.0, 0.0), 1.0),
        ((0.50, 0.3, 0.0), 1.0),
        ((0.50, 0.0, -0.3), 1.0),
        ((0.50, 0.0, 0.4), 1.0),
        ((math.nan, 0.0, 0.0), 1.0),
    ],
)
def test_zones_limit_speed_ahead_and_nothing_else(point: tuple[float, float, float], share: float) -> None:
    assert limited([[*point], [*point]]) == Velocity(0.4 * share, 0.1, 0.5)
    assert limited([[*point], *FREE]) == AHEAD, "one point is noise"


def test_zones_may_be_any_polygon_as_nav2_writes_them() -> None:
    # An arrow head: what is in its notch is outside.
    arrow = GuardSettings(guard="cloud", guard_points=1, stop_polygon="[[0.3, 0.4], [1.5, 0], [0.3, -0.4], [0.9, 0.0]]")
    assert limited([[1.2, 0.05, 0.0]], arrow).vx == 0.0
    assert limited([[0.5, 0.3, 0.0]], arrow).vx == 0.0
    assert limited([[0.6, 0.0, 0.0]], arrow).vx == 0.5 * AHEAD.vx, "the slow-down zone is still the rectangle"
    wide = GuardSettings(guard="cloud", guard_points=1, slow_polygon="[[0.3, 1], [3.0, 1.0], [3.0, -1.0], [0.3, -1.0]]")
    assert limited([[2.9, -0.9, 0.0]], wide).vx == 0.5 * AHEAD.vx
    assert limited([[3.1, -0.9, 0.0]], wide) == AHEAD


@given(
    hnp.arrays(float, st.tuples(st.integers(0, 20), st.just(3)), elements=st.floats(-3.0, 3.0)), st.floats(-1.0, 0.0)
)
def test_it_can_always_turn_and_go_back(points: Any, back: float) -> None:
    guard = Guard(SETTINGS)
    guard.see(points, 10.0)
    for now in (10.0, 99.0):
        for velocity in (Velocity(back, 0.1, 0.4), Velocity(0.0, 0.0, -0.4)):
            assert guard.limit(velocity, now) == velocity
        allowed = guard.limit(AHEAD, now)
        assert 0.0 <= allowed.vx <= AHEAD.vx and (allowed.vy, allowed.wz) == (AHEAD.vy, AHEAD.wz)


@given(
    hnp.arrays(float, st.tuples(st.integers(1, 20), st.just(3)), elements=st.floats(-3.0, 3.0)),
    hnp.arrays(float, (1, 3), elements=st.floats(-3.0, 3.0)),
)
def test_more_points_never_make_it_faster(points: Any, more: Any) -> None:
    guard = Guard(SETTINGS)
    guard.see(points, 10.0)
    before = guard.limit(AHEAD, 10.0).vx
    guard.see(np.concatenate([points, more]), 10.0)
    assert guard.limit(AHEAD, 10.0).vx <= before


def test_the_mount_is_taken_into_account() -> None:
    # As the lidar in a Go2's nose, which looks down and back: x ahead of the robot is its own -x and +z.
    nose = GuardSettings(guard="cloud", guard_points=1, guard_x=0.289, guard_z=-0.047, guard_pitch=2.8782)
    cos, sin = math.cos(2.8782), math.sin(2.8782)
    forward, up = 0.5 - 0.289, 0.0 + 0.047
    seen = [cos * forward - sin * up, 0.0, sin * forward + cos * up]
    assert limited([seen], nose).vx == 0.0
    assert limited([[-value for value in seen]], nose).vx == AHEAD.vx
    left = GuardSettings(guard="cloud", guard_points=1, guard_yaw=math.pi / 2)
    assert limited([[0.0, -0.5, 0.0]], left).vx == 0.0


def test_a_silent_or_wrong_source_ends_motion_ahead_and_is_reported() -> None:
    guard = Guard(SETTINGS)
    assert guard.limit(AHEAD, 10.0).vx == 0.0, "nothing seen yet"
    assert guard.health(10.0).level == Level.ERROR
    assert guard.on_message(cloud(np.array(FREE, np.float32)), 10.0) == ""
    assert guard.limit(AHEAD, 10.4) == AHEAD and guard.health(10.4).level == Level.OK
    broken = cloud(np.array(FREE, np.float32))
    broken.fields = broken.fields[:3]
    fault = "the cloud has no field z of type FLOAT32 or FLOAT64"
    assert guard.on_message(broken, 10.45) == fault
    assert guard.limit(AHEAD, 10.6).vx == 0.0 and guard.health(10.6).message == fault


def cloud(points: Any, bigendian: bool = False, double: bool = False, pad: int = 4, height: int = 1) -> Any:
    """Return a stand-in for a PointCloud2 with an intensity field first and `pad` bytes after each row."""
    kind = (">" if bigendian else "<") + ("f8" if double else "f4")
    records = np.zeros(len(points), np.dtype([("intensity", "u1"), ("x", kind), ("y", kind), ("z", kind)]))
    for index, name in enumerate("xyz"):
        records[name] = np.asarray(points)[:, index]
    width, step, size = len(points) // height, records.itemsize, 8 if double else 4
    rows = [records[row * width : (row + 1) * width].tobytes() + bytes(pad) for row in range(height)]
    fields = [SimpleNamespace(name="intensity", offset=0, datatype=2)]
    fields += [
        SimpleNamespace(name=name, offset=1 + index * size, datatype=8 if double else 7)
        for index, name in enumerate("xyz")
    ]
    return SimpleNamespace(
        fields=fields, is_bigendian=bigendian, width=width, height=height, point_step=step,
        row_step=width * step + pad, data=b"".join(rows),
    )  # fmt: skip


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-100, 100, width=32)),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_clouds_are_read_whatever_their_layout(points: Any, bigendian: bool, double: bool, height: int) -> None:
    points = np.repeat(points, height, axis=0)
    assert np.array_equal(cloud_points(cloud(points, bigendian, double, height=height)), points)


@pytest.mark.parametrize(
    "changes,problem",
    [
        ({"data": b"123"}, "has 3 bytes of"),
        ({"point_step": 4}, "point_step 4"),
        ({"row_step": 5}, "row_step 5"),
        ({"width": 0, "row_step": 0, "data": b""}, "no point"),
        ({"all": math.nan}, "no point"),
    ],
)
def test_a_cloud_that_cannot_be_read_is_one_sentence(changes: dict[str, Any], problem: str) -> None:
    message = cloud(np.full((4, 3), changes.pop("all", 1.0), np.float32))
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(ValueError, match=problem):
        cloud_points(message)


def test_a_scan_gives_points_where_rays_hit() -> None:
    ranges = [1.0, math.inf, -math.inf, math.nan, 0.01, 99.0]
    scan = SimpleNamespace(ranges=ranges, angle_min=0.0, angle_increment=math.pi / 2, range_min=0.1, range_max=10.0)
    assert scan_points(scan) == pytest.approx(np.array([[1.0, 0.0, 0.0], [-0.1, 0.0, 0.0]]), abs=1e-9)
    scan.ranges = [math.inf] * 4
    assert scan_points(scan).shape == (0, 3), "a wide hall is no fault"
    for broken in ([], [math.nan] * 3):
        scan.ranges = broken
        with pytest.raises(ValueError, match="no ray"):
            scan_points(scan)


@pytest.mark.parametrize("distance,points", [(0.4, [[0.4, 0, 0]]), (math.inf, []), (-math.inf, [[0.1, 0, 0]])])
def test_a_range_is_a_point_straight_ahead(distance: float, points: list[list[float]]) -> None:
    message = SimpleNamespace(range=distance, min_range=0.1, max_range=4.0)
    assert range_points(message).tolist() == points


SCAN: dict[str, Any] = {"angle_min": -0.1, "angle_increment": 0.1, "range_min": 0.1, "range_max": 10.0}
SCAN |= {"ranges": [0.4] * 3}
RANGE: dict[str, Any] = {"range": 0.4, "min_range": 0.1, "max_range": 4.0}


@pytest.mark.parametrize(
    ("field", "value"),
    [("range", math.nan), *itertools.product(("range_max", "max_range", "angle_increment"), (0.0, math.nan))],
)
def test_a_sensor_whose_own_figures_hide_what_it_sees_does_not_show_a_free_way(field: str, value: float) -> None:
    """A driver that leaves a field at its 0 would make the guard blind without a word."""
    message = RANGE if field in RANGE else SCAN
    guard = Guard(GuardSettings(guard="range" if message is RANGE else "scan", guard_points=1))
    assert not guard.on_message(SimpleNamespace(**message), 10.0)
    assert guard.limit(AHEAD, 10.1).vx < AHEAD.vx
    assert field in guard.on_message(SimpleNamespace(**message | {field: value}), 11.0)
    assert guard.limit(AHEAD, 11.1).vx == 0.0


@pytest.mark.parametrize(
    "values,problem",
    [
        ({"guard_low": 0.3}, "guard_low 0.3 is not below guard_high 0.25"),
        ({"stop_ahead": 1.0}, "slow_ahead 0.7 is less than stop_ahead 1"),
        ({"stop_polygon": "[[1, 2], [3]]"}, r"stop_polygon '\[\[1, 2\], \[3\]\]' is not \[\[x, y\], ...\]: Expected"),
        ({"slow_polygon": "[[1, 2], [3, 4]]"}, "slow_polygon .* needs three corners"),
        ({"slow_polygon": "[[1, 2], [3, 4], [99, 0]]"}, "slow_polygon .* within 10 m"),
        ({"guard": "nose"}, "guard 'nose' is none of cloud, off, range, scan"),
    ],
)
def test_settings_that_make_no_zone_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        GuardSettings(**values)
