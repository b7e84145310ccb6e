"""The Go2's looks from outside: plain primitives."""

from __future__ import annotations

import math
from typing import Any

from vlm_nav_simulation.gl import mujoco

_THIGH, _CALF = 0.8, -1.5
"""Angles of a standing leg, radians; the base is then 0.335 m above the floor."""


def add_robot(spec: Any, base: Any) -> None:
    """Attach the robot to the body `base` of a scene's spec."""
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
    for x in (-0.193, 0.193):
        for y in (-0.142, 0.142):
            geom("SPHERE", (0.05,), (x, y * 0.75, 0), "go2_dark")
            knee = (x - 0.213 * math.sin(_THIGH), y, -0.213 * math.cos(_THIGH))
            foot = (knee[0] - 0.213 * math.sin(_THIGH + _CALF), y, knee[2] - 0.213 * math.cos(_THIGH + _CALF))
            for start, end, angle, radius in (((x, y, 0.0), knee, _THIGH, 0.03), (knee, foot, _THIGH + _CALF, 0.018)):
                middle = tuple((a + b) / 2 for a, b in zip(start, end, strict=True))
                geom("CAPSULE", (radius, 0.09), middle, "go2_light", angle)
            geom("SPHERE", (0.024,), foot, "go2_dark")
