"""What can be found: colours, classes and the shapes they are rendered with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import cos, pi, sin
from typing import TypeAlias

Vector: TypeAlias = tuple[float, ...]

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.80, 0.05, 0.06),
    "green": (0.05, 0.50, 0.13),
    "blue": (0.05, 0.16, 0.80),
    "yellow": (0.95, 0.83, 0.05),
    "orange": (0.98, 0.40, 0.02),
    "purple": (0.44, 0.10, 0.62),
    "white": (0.97, 0.97, 0.97),
    "black": (0.03, 0.03, 0.035),
    "silver": (0.52, 0.54, 0.58),
}
"""Name -> RGB in 0..1. Silver is rendered with a streaked metal texture, so it is neither a grey nor a white."""


class Paint(Enum):
    """Which material a part wears; MAIN is the object's colour."""

    MAIN = "main"
    SHADE = "shade"
    DARK = "dark"
    LEAF = "leaf"
    STEM = "stem"
    FABRIC = "fabric"
    WOOD = "wood"


class Form(Enum):
    """Primitive of a part; `Part.size` reads as noted."""

    CYLINDER = "radius, half height"
    BOX = "half x, half y, half z"
    SPHERE = "radius"
    ELLIPSOID = "half x, half y, half z"
    FRUSTUM = "bottom radius, top radius, half height"


@dataclass(frozen=True)
class Part:
    """One primitive of a shape: metres, centre relative to the middle of the shape's foot, quaternion w x y z."""

    form: Form
    size: Vector
    position: Vector
    paint: Paint = Paint.MAIN
    quaternion: Vector = (1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Shape:
    """A class of object: its footprint radius and height in metres, and its parts."""

    radius: float
    height: float
    parts: tuple[Part, ...]


def _cylinder(radius: float, bottom: float, top: float, paint: Paint = Paint.MAIN) -> Part:
    return Part(Form.CYLINDER, (radius, (top - bottom) / 2), (0.0, 0.0, (top + bottom) / 2), paint)


def _frustum(low: float, high: float, bottom: float, top: float, paint: Paint = Paint.MAIN) -> Part:
    return Part(Form.FRUSTUM, (low, high, (top - bottom) / 2), (0.0, 0.0, (top + bottom) / 2), paint)


def _leaves() -> tuple[Part, ...]:
    size = (0.15, 0.05, 0.014)
    leaves = [Part(Form.ELLIPSOID, size, (0.0, 0.0, 0.55), Paint.LEAF, (cos(pi / 4), 0.0, sin(pi / 4), 0.0))]
    for i in range(9):
        turn, tilt, base = i * 2.4, 0.25 + 0.35 * (i % 3), 0.34 + 0.05 * (i % 4)
        z, y = (cos(turn / 2), sin(turn / 2)), (cos(-tilt / 2), sin(-tilt / 2))
        quaternion = (z[0] * y[0], -z[1] * y[1], z[0] * y[1], z[1] * y[0])
        reach = 0.12
        centre = (reach * cos(tilt) * cos(turn), reach * cos(tilt) * sin(turn), base + reach * sin(tilt))
        leaves.append(Part(Form.ELLIPSOID, size, centre, Paint.LEAF, quaternion))
    return tuple(leaves)


def _legs(spread: float, top: float, thickness: float) -> tuple[Part, ...]:
    return tuple(
        Part(Form.BOX, (thickness, thickness, top / 2), (x, y, top / 2), Paint.MAIN)
        for x in (-spread, spread)
        for y in (-spread, spread)
    )


def _handle(radius: float, height: float) -> tuple[Part, ...]:
    x, half = radius + 0.025, height * 0.28
    return (
        Part(Form.BOX, (0.025, 0.009, 0.009), (x, 0.0, height / 2 + half)),
        Part(Form.BOX, (0.025, 0.009, 0.009), (x, 0.0, height / 2 - half)),
        Part(Form.BOX, (0.009, 0.009, half), (x + 0.02, 0.0, height / 2)),
    )


CLASSES: dict[str, Shape] = {
    "bottle": Shape(
        0.06,
        0.36,
        (
            _cylinder(0.06, 0.0, 0.21),
            _frustum(0.06, 0.022, 0.21, 0.28),
            _cylinder(0.022, 0.28, 0.335),
            _cylinder(0.027, 0.325, 0.36, Paint.DARK),
        ),
    ),
    "ball": Shape(0.12, 0.24, (Part(Form.SPHERE, (0.12,), (0.0, 0.0, 0.12)),)),
    "box": Shape(
        0.20,
        0.28,
        (
            Part(Form.BOX, (0.15, 0.13, 0.125), (0.0, 0.0, 0.125)),
            Part(Form.BOX, (0.157, 0.137, 0.022), (0.0, 0.0, 0.258), Paint.SHADE),
        ),
    ),
    "cone": Shape(
        0.20,
        0.46,
        (
            Part(Form.BOX, (0.15, 0.15, 0.012), (0.0, 0.0, 0.012)),
            _frustum(0.13, 0.025, 0.024, 0.46),
        ),
    ),
    "chair": Shape(
        0.27,
        0.84,
        (
            Part(Form.BOX, (0.20, 0.19, 0.025), (0.0, 0.0, 0.42)),
            *_legs(0.165, 0.40, 0.02),
            Part(Form.BOX, (0.02, 0.19, 0.11), (-0.18, 0.0, 0.73)),
            Part(Form.BOX, (0.018, 0.018, 0.10), (-0.18, -0.16, 0.53)),
            Part(Form.BOX, (0.018, 0.018, 0.10), (-0.18, 0.16, 0.53)),
        ),
    ),
    "plant": Shape(0.20, 0.70, (_frustum(0.10, 0.14, 0.0, 0.25), _cylinder(0.012, 0.25, 0.5, Paint.STEM), *_leaves())),
    "mug": Shape(
        0.10,
        0.16,
        (_cylinder(0.065, 0.0, 0.16), _cylinder(0.056, 0.156, 0.162, Paint.DARK), *_handle(0.065, 0.16)),
    ),
    "bin": Shape(
        0.17,
        0.42,
        (
            _frustum(0.12, 0.16, 0.0, 0.40),
            _cylinder(0.17, 0.39, 0.42, Paint.SHADE),
            _cylinder(0.145, 0.417, 0.423, Paint.DARK),
        ),
    ),
    "lamp": Shape(
        0.20,
        0.76,
        (
            _cylinder(0.12, 0.0, 0.025, Paint.DARK),
            _cylinder(0.014, 0.02, 0.52, Paint.DARK),
            _frustum(0.20, 0.10, 0.48, 0.76),
        ),
    ),
}
"""Class -> shape at scale 1. Bottle and mug are a bit oversized, so that 224 pixels show them at 3 m."""
