"""A point of the world is in the published image where its CameraInfo puts it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spec_vlm_nav.camera import quaternion
from spec_vlm_nav.optics import LensSettings, Optics, ViewSettings

GO2 = LensSettings()


def in_source(x: float, y: float, lens: LensSettings, width: int, height: int) -> tuple[float, float]:
    """Return the source pixel of the direction (x, y, 1): the plumb_bob model, written out."""
    square = x * x + y * y
    radial = 1 + lens.k1 * square + lens.k2 * square**2 + lens.k3 * square**3
    u = lens.fx * (x * radial + 2 * lens.p1 * x * y + lens.p2 * (square + 2 * x * x)) + lens.cx
    v = lens.fy * (y * radial + lens.p1 * (square + 2 * y * y) + 2 * lens.p2 * x * y) + lens.cy
    return (u + 0.5) * width / lens.source_width - 0.5, (v + 0.5) * height / lens.source_height - 0.5


def with_dot(u: float, v: float, width: int, height: int, sigma: float) -> np.ndarray:
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    dot = 255 * np.exp(-((columns - u) ** 2 + (rows - v) ** 2) / (2 * sigma**2))
    return np.repeat(dot[..., None], 3, axis=2).astype(np.uint8)


def centre_of(image: np.ndarray) -> tuple[float, float]:
    weights = image[..., 0].astype(float)
    rows, columns = np.indices(weights.shape)
    return float((columns * weights).sum() / weights.sum()), float((rows * weights).sum() / weights.sum())


@settings(max_examples=25)
@given(
    x=st.floats(-0.7, 0.7),
    y=st.floats(-0.3, 0.3),
    size=st.sampled_from([(1280, 720), (640, 360)]),
    view=st.sampled_from([ViewSettings(), ViewSettings(80.0, 640, 360), ViewSettings(60.0, 320, 240)]),
)
def test_a_point_projects_where_the_camera_info_says(
    x: float, y: float, size: tuple[int, int], view: ViewSettings
) -> None:
    width, height = size
    optics = Optics(GO2, view, width, height)
    u, v, _ = optics.camera.matrix @ (x, y, 1.0)
    assume(6 < u < view.width - 7 and 6 < v < view.height - 7)
    at = in_source(x, y, GO2, width, height)
    assume(30 < at[0] < width - 30 and 30 < at[1] < height - 30)
    found = centre_of(optics.apply(with_dot(*at, width, height, sigma=6.0 * width / 1280)))
    assert math.dist(found, (u, v)) < 0.6


@settings(max_examples=25)
@given(
    roll=st.floats(-0.6, 0.6), pitch=st.floats(-0.6, 0.6), across=st.floats(-0.6, 0.6), down=st.floats(-0.6, 0.6)
)  # fmt: skip
def test_a_mounted_camera_is_shown_level(roll: float, pitch: float, across: float, down: float) -> None:
    lens = LensSettings(200.0, 200.0, 319.5, 319.5, 0.0, 0.0, 0.0, 0.0, 0.0, 640, 640)
    optics = Optics(lens, ViewSettings(), 640, 640, roll, pitch)
    u, v, _ = optics.camera.matrix @ (across, down, 1.0)
    # The same direction in the robot's base, x ahead and z up, and from there in the mounted camera.
    x, y, z, w = quaternion(roll, pitch, 0.0)
    level = np.array([1.0, -across, -down])
    axis = -np.array([x, y, z])
    ahead, left, up = level + 2.0 * np.cross(axis, np.cross(axis, level) + w * level)
    assume(ahead > 0.3 and abs(left / ahead) < 1.4 and abs(up / ahead) < 1.4)
    at = lens.cx - lens.fx * left / ahead, lens.cy - lens.fy * up / ahead
    found = centre_of(optics.apply(with_dot(*at, 640, 640, sigma=4.0)))
    assert math.dist(found, (u, v)) < 1.0


@given(fov=st.floats(10, 140), width=st.integers(16, 640), height=st.integers(16, 640))
@settings(max_examples=25)
def test_the_field_of_view_is_from_edge_to_edge(fov: float, width: int, height: int) -> None:
    camera = Optics(GO2, ViewSettings(fov, width, height), 1280, 720).camera
    left, right = ((edge - camera.matrix[0, 2]) / camera.matrix[0, 0] for edge in (-0.5, width - 0.5))
    assert math.degrees(math.atan(right) - math.atan(left)) == pytest.approx(fov)
    assert camera.matrix[0, 0] == camera.matrix[1, 1] and not any(camera.distortion)
    assert (camera.width, camera.height) == (width, height)


def test_what_the_source_does_not_show_repeats_what_is_nearest_and_is_counted() -> None:
    rows = np.repeat(np.linspace(40, 240, 720).astype(np.uint8)[:, None, None], 1280, axis=1).repeat(3, axis=2)
    optics = Optics(GO2, ViewSettings(), 1280, 720)
    image = optics.apply(rows)[..., 0].astype(int)
    assert 0.35 < optics.covered == optics.shown.mean() < 0.5
    hidden = ~optics.shown
    assert hidden[:40].all() and hidden[-40:].all() and optics.shown[112, 5:-5].all()
    assert (abs(image[:40] - 40) < 12).all() and (abs(image[-40:] - 240) < 12).all(), "the image's own edges"


def test_the_floor_two_metres_ahead_stays_where_it_is_at_any_height() -> None:
    for height in (0.25, 0.378, 0.6):
        down = math.tan(math.atan(height / 2.0) - ViewSettings(camera_height_m=height).tilt)
        assert down == pytest.approx(0.378 / 2.0)


def test_the_whole_image_of_another_aspect_needs_no_calibration_and_has_none() -> None:
    optics = Optics(GO2, ViewSettings(0.0, 320, 240), 640, 480)
    assert optics.apply(with_dot(600, 300, 640, 480, 5)).shape == (240, 320, 3)
    assert not optics.camera.matrix.any() and optics.camera.distortion == ()


@pytest.mark.parametrize(
    ("fov", "size", "pitch", "words"),
    [
        (0.0, (2000, 8), 0.0, "2000 x 8 pixels is no view of a camera"),
        (90.0, (7, 7), 0.0, "7 x 7 pixels is no view of a camera"),
        (40.0, (1280, 720), 1.5, "sees nothing of the level view"),
        (90.0, (640, 480), 0.0, "is of 1280 x 720: .* or set fov_deg to 0.0 for its whole image"),
    ],
)
def test_a_source_without_the_view_is_refused_with_a_way_out(
    fov: float, size: tuple[int, int], pitch: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Optics(GO2, ViewSettings(fov), *size, pitch=pitch)
