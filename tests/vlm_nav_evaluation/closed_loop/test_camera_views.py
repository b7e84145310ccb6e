"""Frames of another mount, cropped, are those of the mount that the embedded pair knows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vlm_nav_evaluation.closed_loop.camera_views import SIZE, Crop, shown
from vlm_nav_simulation.geometry import GO2_MOUNT, CameraMount
from vlm_nav_simulation.scene import scene_of
from vlm_nav_simulation.world import World


@pytest.mark.parametrize(
    ("mount", "crop"),
    [
        (CameraMount(pitch_deg=12.0), Crop.VIEW),
        (CameraMount(pitch_deg=-12.0, fov_deg=110.0), Crop.VIEW),
        (GO2_MOUNT, Crop.GO2),
    ],
)
def test_a_crop_shows_what_the_usual_camera_sees(mount: CameraMount, crop: Crop) -> None:
    scene = scene_of(20000, "middle", "")
    with World(scene) as usual, World(scene, crop.source_size, mount=mount) as other:
        expected, found = usual.render().astype(int), shown(mount, crop)(other.render()).astype(int)
        eye, axes = other.camera_pose
    assert eye[2] == pytest.approx(mount.height_m)
    assert -axes[2, 2] == pytest.approx(-math.sin(math.radians(mount.pitch_deg))), "down is positive"
    assert found.shape == (SIZE, SIZE, 3)
    # The light moves with the camera. Beyond the middle something may be repeated.
    middle = slice(SIZE // 3, -SIZE // 3)
    assert np.abs(found - expected)[middle, middle].mean() < 6.0
    assert found.min(axis=2)[:5].mean() > 20, "no black border"
    assert crop.fov_deg(mount) == 90.0 and Crop.NONE.fov_deg(mount) == mount.fov_deg
