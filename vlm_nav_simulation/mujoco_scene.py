"""Builds a `Scene` in MuJoCo: materials, textures, lights, walls, furniture, objects and cameras."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vlm_nav_simulation import textures
from vlm_nav_simulation.geometry import Box
from vlm_nav_simulation.gl import mujoco
from vlm_nav_simulation.layouts import WALL_HEIGHT, Area
from vlm_nav_simulation.objects import CLASSES, COLOURS, Form, Paint, Part
from vlm_nav_simulation.scene import Scene, SceneObject

FRONT_CAMERA = "front"
TOP_CAMERA = "top"
BASE_BODY = "base"
CEILING_GROUP = 4
_TOP_HEIGHT, _TOP_VIEW = 2.2, 55
_FORWARD = (0.5, 0.5, -0.5, -0.5)
_EDGES = 24

_AUXILIARY: dict[Paint, tuple[float, float, float]] = {
    Paint.DARK: (0.09, 0.09, 0.10),
    Paint.LEAF: (0.13, 0.40, 0.10),
    Paint.STEM: (0.30, 0.21, 0.12),
    Paint.FABRIC: (0.30, 0.31, 0.34),
    Paint.WOOD: (0.36, 0.22, 0.12),
}


def object_body(index: int) -> str:
    """Name of the MuJoCo body of object `index`."""
    return f"object{index}"


def top_reach(scene: Scene) -> float:
    """Return how far from the middle of the floor a square top view reaches, metres."""
    return _TOP_HEIGHT * max(scene.half_x, scene.half_y) * math.tan(math.radians(_TOP_VIEW / 2))


def build_spec(scene: Scene, width: int = 224, height: int = 224) -> Any:
    """Return the `MjSpec` of a scene: room, furniture, objects and the robot's base with its front camera.

    `width` and `height` bound the frames that can be rendered, pixels; a renderer of large frames takes long to build.
    """
    spec = _Stage(scene).spec
    frame = spec.visual.global_
    frame.offwidth, frame.offheight = width, height
    return spec


class _Stage:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.rng = np.random.default_rng([scene.seed, 7])
        self.spec = mujoco.MjSpec()
        self.world = self.spec.worldbody
        self._frusta: dict[tuple[float, ...], str] = {}
        self._settings()
        self._room()
        for box in scene.furniture:
            self._furniture(box)
        for item in scene.objects:
            self._object(item)
        base = self.world.add_body(name=BASE_BODY, mocap=True)
        front = base.add_camera(name=FRONT_CAMERA, quat=_FORWARD)
        front.fovy = 90
        top = self.world.add_camera(name=TOP_CAMERA, pos=[0, 0, _TOP_HEIGHT * max(scene.half_x, scene.half_y)])
        top.fovy = _TOP_VIEW

    def _settings(self) -> None:
        spec = self.spec
        spec.visual.quality.shadowsize = 64
        spec.visual.quality.offsamples = 4
        spec.visual.map.znear, spec.visual.map.zfar = 0.003, 10
        spec.stat.extent, spec.stat.center = 6, [0, 0, 1]
        ambient = self.rng.uniform(0.42, 0.54)
        spec.visual.headlight.ambient = [ambient] * 3
        spec.visual.headlight.diffuse = [self.rng.uniform(0.20, 0.30)] * 3
        spec.visual.headlight.specular = [0.15] * 3
        for key, colour in _AUXILIARY.items():
            self._material(key.value, np.array(colour))

    def _material(self, name: str, rgb: Any, texture: str = "", repeat: float = 0.0, shine: float = 0.2) -> None:
        material = self.spec.add_material(name=name, specular=shine, shininess=shine)
        material.rgba = [*np.clip(rgb, 0, 1), 1]
        if texture:
            slots = [""] * len(material.textures)
            slots[mujoco.mjtTextureRole.mjTEXROLE_RGB] = texture
            material.textures = slots
            if repeat:
                material.texuniform, material.texrepeat = True, [repeat, repeat]

    def _texture(self, name: str, image: textures.Image, cube: bool = False) -> None:
        kind = mujoco.mjtTexture.mjTEXTURE_CUBE if cube else mujoco.mjtTexture.mjTEXTURE_2D
        texture = self.spec.add_texture(name=name, type=kind, nchannel=3)
        if cube:
            image = np.concatenate([image] * 6)
        texture.height, texture.width = image.shape[:2]
        texture.data = image.tobytes()

    def _geom(self, body: Any, kind: str, size: Any, position: Any, material: str, **more: Any) -> None:
        size = [*size, *[0.0] * (3 - len(size))]
        shape = getattr(mujoco.mjtGeom, f"mjGEOM_{kind}")
        body.add_geom(
            type=shape, size=size, pos=list(position), material=material, contype=0, conaffinity=0, mass=0, **more
        )

    def _room(self) -> None:
        rng, half_x, half_y = self.rng, self.scene.half_x, self.scene.half_y
        self._texture("floor", textures.FLOORS[rng.integers(len(textures.FLOORS))](rng))
        self._material("floor", (1, 1, 1), "floor", rng.uniform(1.0, 1.6), 0.02)
        for i in range(2):
            self._texture(f"wall{i}", textures.WALLS[rng.integers(len(textures.WALLS))](rng))
            self._material(f"wall{i}", (1, 1, 1), f"wall{i}", rng.uniform(0.8, 1.4), 0.02)
        self._material("ceiling", (0.86, 0.86, 0.84), shine=0.0)
        self._material("skirting", [rng.uniform(0.25, 0.6)] * 3, shine=0.0)
        self._geom(self.world, "BOX", (half_x, half_y, 0.05), (0, 0, -0.05), "floor")
        above = (0, 0, WALL_HEIGHT + 0.05)
        self._geom(self.world, "BOX", (half_x, half_y, 0.05), above, "ceiling", group=CEILING_GROUP)
        accent = rng.integers(4)
        for i, wall in enumerate(self.scene.boxes[:4]):
            self._wall(wall, "wall1" if i == accent else "wall0")
        for wall in self.scene.plan.partitions:
            self._wall(wall, "wall0")
        for doorway in self.scene.plan.doorways:
            self._lintel(doorway)
        for i in range(int(rng.integers(1, 4))):
            self._picture(i)
        for area in self.scene.plan.areas:
            self._light(area)

    def _light(self, area: Area) -> None:
        rng, reach_x, reach_y = self.rng, min(1.0, area.half_x / 2), min(1.0, area.half_y / 2)
        x, y = area.x + rng.uniform(-reach_x, reach_x), area.y + rng.uniform(-reach_y, reach_y)
        light = self.world.add_light(pos=[x, y, 2.35], dir=[0, 0, -1])
        light.type, light.cutoff, light.exponent = mujoco.mjtLightType.mjLIGHT_SPOT, 85, 0.3
        warm = rng.uniform(0.0, 0.08)
        light.diffuse = list(rng.uniform(0.50, 0.68) * np.array([1.0, 1.0 - warm / 2, 1.0 - warm]))
        light.specular, light.attenuation, light.castshadow = [0.35] * 3, [1, 0.04, 0.02], True

    def _wall(self, wall: Box, material: str) -> None:
        along_x = wall.half_x > wall.half_y
        length, thick = max(wall.half_x, wall.half_y), min(wall.half_x, wall.half_y)
        # 2-D textures lie along a box's own z: the wall's normal must be that axis
        turn = (math.sqrt(0.5), math.sqrt(0.5), 0, 0) if along_x else (0.5, 0.5, 0.5, 0.5)
        self._geom(
            self.world, "BOX", (length, WALL_HEIGHT / 2, thick), (wall.x, wall.y, WALL_HEIGHT / 2), material, quat=turn
        )
        edge = (wall.half_x + (0 if along_x else 0.008), wall.half_y + (0.008 if along_x else 0), 0.04)
        self._geom(self.world, "BOX", edge, (wall.x, wall.y, 0.04), "skirting")

    def _lintel(self, doorway: Box) -> None:
        half = (WALL_HEIGHT - doorway.height) / 2
        size, middle = (doorway.half_x, doorway.half_y, half), (doorway.x, doorway.y, doorway.height + half)
        self._geom(self.world, "BOX", size, middle, "skirting", group=CEILING_GROUP)

    def _picture(self, number: int) -> None:
        rng, name = self.rng, f"picture{number}"
        self._texture(name, textures.picture(rng))
        self._material(name, (1, 1, 1), name, shine=0.05)
        wall = self.scene.boxes[rng.integers(4)]
        along_x = wall.half_x > wall.half_y
        width, height, z = rng.uniform(0.2, 0.45), rng.uniform(0.18, 0.32), rng.uniform(1.1, 1.6)
        reach = (self.scene.half_x if along_x else self.scene.half_y) - 0.6
        along, inside = rng.uniform(-reach, reach), wall.half_y + 0.006 if along_x else wall.half_x + 0.006
        turn = (math.sqrt(0.5), math.sqrt(0.5), 0, 0) if along_x else (0.5, 0.5, 0.5, 0.5)
        x = along if along_x else wall.x - math.copysign(inside, wall.x)
        y = wall.y - math.copysign(inside, wall.y) if along_x else along
        self._geom(self.world, "BOX", (width, height, 0.008), (x, y, z), name, quat=turn)

    def _furniture(self, box: Box) -> None:
        body = self.world.add_body(pos=[box.x, box.y, 0])
        x, y, z = box.half_x, box.half_y, box.height
        if box.name == "table":
            self._geom(body, "BOX", (x, y, 0.02), (0, 0, z - 0.02), "wood")
            for i in (-1, 1):
                for j in (-1, 1):
                    self._geom(body, "BOX", (0.03, 0.03, z / 2), (i * (x - 0.04), j * (y - 0.04), z / 2), "wood")
        elif box.name == "sofa":
            self._geom(body, "BOX", (x, y, 0.19), (0, 0, 0.22), "fabric")
            area = self.scene.area_at(box.x, box.y)
            if x > y:
                back, rest = (x, 0.09, z / 2), (0.0, math.copysign(y - 0.09, box.y - area.y), z / 2)
                arm, at = (0.07, y, 0.27), [(i * (x - 0.07), 0.0, 0.29) for i in (-1, 1)]
            else:
                back, rest = (0.09, y, z / 2), (math.copysign(x - 0.09, box.x - area.x), 0.0, z / 2)
                arm, at = (x, 0.07, 0.27), [(0.0, i * (y - 0.07), 0.29) for i in (-1, 1)]
            self._geom(body, "BOX", back, rest, "fabric")
            for position in at:
                self._geom(body, "BOX", arm, position, "fabric")
        else:
            self._shelf(body, x, y, z)

    def _shelf(self, body: Any, x: float, y: float, z: float) -> None:
        along_x = x > y
        for i in (-1, 1):
            side = (0.02, y, z / 2) if along_x else (x, 0.02, z / 2)
            self._geom(body, "BOX", side, (i * (x - 0.02), 0, z / 2) if along_x else (0, i * (y - 0.02), z / 2), "wood")
        boards = max(3, round(z / 0.35))
        for i in range(boards):
            self._geom(body, "BOX", (x, y, 0.015), (0, 0, 0.04 + i * (z - 0.06) / (boards - 1)), "wood")
        inner = (x - 0.04, y * 0.2, z / 2 - 0.02) if along_x else (x * 0.2, y - 0.04, z / 2 - 0.02)
        self._geom(body, "BOX", inner, (0, 0, z / 2), "fabric")

    def _object(self, item: SceneObject) -> None:
        # lightness varies alone where a tint would make another colour of it
        neutral = item.colour in ("white", "black", "silver")
        rgb = np.array(COLOURS[item.colour]) + self.rng.normal(0, 0.02, 1 if neutral else 3)
        name = object_body(item.index)
        if item.colour == "silver":
            if not any(texture.name == "metal" for texture in self.spec.textures):
                self._texture("metal", textures.metal(), cube=True)
            self._material(name, rgb * 1.35, "metal", shine=0.9)
            self._material(f"{name}shade", rgb * 1.0, "metal", shine=0.9)
        else:
            self._material(name, rgb, shine=0.3)
            self._material(f"{name}shade", rgb * 0.78 + 0.015)
        half = item.yaw / 2
        body = self.world.add_body(name=name, pos=[item.x, item.y, 0], quat=[math.cos(half), 0, 0, math.sin(half)])
        for part in CLASSES[item.object_class].parts:
            self._part(body, part, name, item.scale)

    def _part(self, body: Any, part: Part, name: str, scale: float) -> None:
        material = {Paint.MAIN: name, Paint.SHADE: f"{name}shade"}.get(part.paint, part.paint.value)
        size, position = [s * scale for s in part.size], [p * scale for p in part.position]
        if part.form is Form.FRUSTUM:
            mesh = self._frustum(*size)
            self._geom(body, "MESH", (), position, material, meshname=mesh, quat=list(part.quaternion))
        else:
            self._geom(body, part.form.name, size, position, material, quat=list(part.quaternion))

    def _frustum(self, low: float, high: float, half: float) -> str:
        """Return the name of a closed frustum mesh whose origin is its middle."""
        key = (low, high, half)
        if key not in self._frusta:
            angles = np.arange(_EDGES) * 2 * math.pi / _EDGES
            ring = np.stack([np.cos(angles), np.sin(angles), np.zeros(_EDGES)], axis=1)
            up = np.array([[0.0, 0.0, half]])
            vertices = np.concatenate([ring * low - up, ring * high + up, -up, up])
            i, j = np.arange(_EDGES), np.roll(np.arange(_EDGES), -1)
            bottom, top = np.full(_EDGES, 2 * _EDGES), np.full(_EDGES, 2 * _EDGES + 1)
            faces = np.concatenate(
                [
                    np.stack([i, j, i + _EDGES], 1),
                    np.stack([j, j + _EDGES, i + _EDGES], 1),
                    np.stack([bottom, j, i], 1),
                    np.stack([top, i + _EDGES, j + _EDGES], 1),
                ]
            )
            name = f"frustum{len(self._frusta)}"
            self.spec.add_mesh(name=name, uservert=vertices.ravel().tolist(), userface=faces.ravel().tolist())
            self._frusta[key] = name
        return self._frusta[key]
