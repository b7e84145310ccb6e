"""Rooms of every seed stay what they are: models are trained in them and figures are measured in them.

What is pinned is what a room is made of (rounded, so that no last bit of a library decides), never drawn pixels: those
differ from one GL to the next.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from speculation.language.prompts import Target
from vlm_nav_simulation.mujoco_scene import build_spec
from vlm_nav_simulation.scene import Difficulty, Scene, make_scene

ROOMS = [
    (0, Difficulty.EASY, None),
    (7, Difficulty.MIDDLE, None),
    (0, Difficulty.MIDDLE, Target("silver", "bottle")),
    (123456, Difficulty.HARD, None),
    (5_000_003, Difficulty.HARD, Target("red", "chair")),
]


def rounded(values: Any) -> list[float]:
    return [round(float(value), 6) + 0.0 for value in values]


def described(scene: Scene) -> list[Any]:
    """What stands where."""
    return [
        scene.seed,
        scene.difficulty.name,
        rounded((scene.half_x, scene.half_y, *scene.start)),
        [(box.name, rounded((box.x, box.y, box.half_x, box.half_y, box.height))) for box in scene.boxes],
        [(item.target.text, rounded((item.x, item.y, item.yaw, item.scale))) for item in scene.objects],
        scene.target_index,
    ]


def looks(scene: Scene) -> list[Any]:
    """What it is drawn with: shapes, materials, lights, textures."""
    spec = build_spec(scene)
    shapes = [
        (geom.parent.name, int(geom.type), geom.material, rounded((*geom.size, *geom.pos, *geom.quat)), int(geom.group))
        for geom in spec.geoms
    ]
    paints = [(m.name, rounded(m.rgba), rounded((*m.texrepeat, m.specular, m.shininess))) for m in spec.materials]
    lights = [rounded((*light.pos, *light.dir, *light.diffuse, *light.specular, *light.attenuation, light.cutoff))
              for light in spec.lights]  # fmt: skip
    head = rounded((*spec.visual.headlight.ambient, *spec.visual.headlight.diffuse, *spec.visual.headlight.specular))
    model = spec.compile()
    front = model.camera("front")
    view = rounded((*front.fovy, *front.quat))
    pixels = hashlib.sha256(model.tex_data.tobytes()).hexdigest()
    return [shapes, paints, lights, head, view, pixels]


def digest(facts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


PINNED = [
    ("baa240c7128cfdf3", "42b07ca2eef51ac5"),
    ("727b926c5e5c0d0d", "6bfccdfffbb9b66e"),
    ("f4cbc9ffa9f4a4ef", "74945ea5b888bd78"),
    ("55cc39cc58320636", "f28659717d312268"),
    ("8f0a63417a065cb6", "516d7d87a6422944"),
]
"""Digests of `described` and `looks`: never change these, make what is new an option."""


@pytest.mark.parametrize(("room", "pinned"), list(zip(ROOMS, PINNED, strict=True)))
def test_known_rooms_are_what_they_were(room: tuple[int, Difficulty, Target | None], pinned: tuple[str, str]) -> None:
    scene = make_scene(*room)
    assert (digest(described(scene)), digest(looks(scene))) == pinned
