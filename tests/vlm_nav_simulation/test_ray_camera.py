"""The ray camera shows what GL shows, and takes GL's place where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from speculation.language.prompts import Target
from vlm_nav_simulation.camera import VARIABLE, CameraKind, RayCamera, chosen_kind
from vlm_nav_simulation.histories import random_pose
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.scene import Difficulty, Scene, make_scene
from vlm_nav_simulation.world import World

ROOT = Path(__file__).resolve().parents[2]


def gl_reason() -> str:
    """Why GL does not work here, nothing if it does."""
    try:
        World(make_scene(7, Difficulty.EASY), 56, camera=CameraKind.GL).close()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def needs_gl() -> None:
    if reason := gl_reason():
        pytest.skip(f"nothing to compare with: {reason}")


SCENES = [
    make_scene(7, Difficulty.MIDDLE),
    make_scene(0, Difficulty.HARD, Target("silver", "lamp")),
    make_scene(3, Difficulty.HARD, layout=Layout.HALLWAY),
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.layout.value}{scene.seed}")
@pytest.mark.usefixtures("needs_gl")
def test_both_cameras_see_the_same(scene: Scene) -> None:
    rng = np.random.default_rng(2)
    same, difference = [], []
    with World(scene, camera=CameraKind.GL) as gl, World(scene, camera=CameraKind.RAY) as ray:
        for _ in range(3):
            pose = random_pose(scene, rng)
            gl.set_pose(*pose)
            ray.set_pose(*pose)
            same.append(np.mean(gl.segmentation() == ray.segmentation()))
            difference.append(np.abs(gl.render().astype(int) - ray.render()).mean())
    assert min(same) > 0.999
    # grey levels of 255; a black picture differs by about 110, a wrong texture by 10
    assert max(difference) < 7.0


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "ray")
    with World(SCENES[0], 56) as world:
        assert isinstance(world._camera, RayCamera)
    monkeypatch.setenv(VARIABLE, "film")
    with pytest.raises(ValueError, match=f"{VARIABLE}='film' is no camera; use gl or ray"):
        chosen_kind()
    monkeypatch.delenv(VARIABLE)
    assert chosen_kind() is None


PROGRAM = """
import logging, sys
logging.basicConfig()
from vlm_nav_simulation.camera import CameraKind
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.world import World
scene = make_scene(7, Difficulty.EASY)
for _ in range(2):
    with World(scene, 56) as world:
        print(type(world._camera).__name__, world.render().shape)
try:
    World(scene, 56, camera=CameraKind.GL)
except RuntimeError as error:
    print("refused:", error)
"""


def test_without_gl_rays_take_over_and_say_so_once() -> None:
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE} | {"MUJOCO_GL": "disable"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("RayCamera (56, 56, 3)") == 2
    assert "refused: no GL library for off-screen rendering" in done.stdout
    assert done.stderr.count("images are rendered by rays") == 1
