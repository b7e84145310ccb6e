"""Where an answer says that the object stands: a place by odometry with the spread that was measured. No ROS.

Answers name a side of the frame in five words and a distance in half metres, so a place is coarse however well the
model sees.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from msgspec import Meta

from spec_vlm_nav.motion import PlanarPose, wrap
from spec_vlm_nav.optics import GO2_HEIGHT
from speculation.language.search_memory import GO2_CAMERA, SIDE_PHRASES, named_place
from speculation.language.thinking import split_thinking
from speculation.settings import CheckedSettings

USUAL_FOV = 90.0
"""The field of view, degrees, of which answers' sides are."""
PLACEHOLDER = ("the", "object")
"""What a model that takes any instruction calls what it looks for, where it is asked to name its place."""
BEARING_DEG = 6.0
RANGE_M, RANGE_SHARE = 0.15, 0.13
"""Standard deviations of a named bearing, and of a named distance: metres, or a share of it where that is more.

By the places that the shipped target named in simulated rooms (docs/evaluation.md): in other rooms 93 % are within the
95 % ellipse.
"""


class FrameSettings(CheckedSettings, frozen=True):
    """Describes the frames that vlm_nav gets, for guided prompts, and whether places in them are published."""

    camera_height_m: Annotated[float, Meta(ge=0.05, le=3.0, description="camera above the floor, m")] = GO2_HEIGHT
    camera_pitch_deg: Annotated[
        float, Meta(ge=-60.0, le=60.0, description="how far down its frames look, degrees; go2_camera levels them: 0")
    ] = 0.0
    fov_deg: Annotated[
        float, Meta(ge=20.0, le=150.0, description="horizontal field of view of the frames, degrees")
    ] = USUAL_FOV
    sightings: Annotated[
        bool, Meta(description="publish where verified answers place the object, on ~/sighting, for nav2")
    ] = False


def camera_lines(frames: FrameSettings) -> tuple[str, ...]:
    """Return what a guided prompt tells a model about the camera, and how it names a place where that is asked for."""
    pitch = frames.camera_pitch_deg
    looks = f"{abs(pitch):g} degrees {'down' if pitch > 0 else 'up'}" if pitch else "straight ahead"
    camera = (
        f"The camera is {frames.camera_height_m:.2g} m above the floor and looks {looks}; its picture is "
        f"{frames.fov_deg:g} degrees wide."
    )
    sides = ", ".join(phrases[0] for phrases in SIDE_PHRASES.values())
    named = " ".join(PLACEHOLDER).capitalize()
    place = (
        f"Where you see what you look for, say so with these words: '{named} is on the left, about 1.5 m away.' The "
        f"sides are {sides}; distances are in half metres."
    )
    return (camera, place) if frames.sightings else (camera,)


class Sighting(NamedTuple):
    """The side of an object that faces the camera: metres and radians in odometry's frame."""

    x: float
    y: float
    yaw: float
    """Direction in which the camera saw it: a robot that stands there with this heading looks at it."""
    xx: float
    """Variance along x, square metres."""
    xy: float
    yy: float
    yaw_variance: float
    """Square radians."""


def spread(metres: float) -> tuple[float, float]:
    """Return the standard deviations of a place at a named distance, metres: along the line of sight and across it."""
    return max(RANGE_M, RANGE_SHARE * metres), metres * math.radians(BEARING_DEG)


def sighting(
    answer: str, colour: str, object_class: str, place: PlanarPose | None, fov_deg: float = USUAL_FOV
) -> Sighting | None:
    """Return where an answer places an object (an empty word: any) that it saw from `place`, the base's own.

    None where it names no side or no distance of it, and where nobody knows where its frame was taken.
    """
    named = named_place(split_thinking(answer)[1], colour, object_class)
    if named is None or place is None or not place.finite:
        return None
    wide = math.tan(math.radians(fov_deg) / 2) / math.tan(math.radians(USUAL_FOV) / 2)
    yaw = wrap(place.yaw + math.atan(wide * math.tan(named[0])))
    metres = named[1]
    along, across = (deviation**2 for deviation in spread(metres))
    cos, sin = math.cos(yaw), math.sin(yaw)
    return Sighting(
        place.x + GO2_CAMERA * math.cos(place.yaw) + metres * cos,
        place.y + GO2_CAMERA * math.sin(place.yaw) + metres * sin,
        yaw,
        along * cos * cos + across * sin * sin,
        (along - across) * sin * cos,
        along * sin * sin + across * cos * cos,
        math.radians(BEARING_DEG) ** 2,
    )
