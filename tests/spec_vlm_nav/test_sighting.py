"""Where an answer places its object: a point of the camera's view, with a spread along and across the line of sight."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.motion import PlanarPose, wrap
from spec_vlm_nav.navigation_goal import NavigationGoal
from spec_vlm_nav.navigator_interfaces import Frame
from spec_vlm_nav.sighting import FrameSettings, camera_lines, sighting
from speculation.language.prompts import Guidance, ResponseOrder, Vocabulary
from speculation.language.search_memory import GO2_CAMERA, SIDE_PHRASES

HERE = PlanarPose(1.0, -2.0, math.pi / 2)
BEARINGS = dict(zip(SIDE_PHRASES, (33.0, 16.0, 0.0, -16.0, -33.0), strict=True))
ASKED = FrameSettings(sightings=True)
LEFT = "The silver bottle is on the left, about 2 m away.\nAction: turn left medium"


@given(
    side=st.sampled_from([*SIDE_PHRASES]),
    halves=st.integers(1, 12),
    fov=st.floats(30, 140),
    x=st.floats(-50, 50),
    y=st.floats(-50, 50),
    yaw=st.floats(-math.pi, math.pi),
)
def test_a_place_is_where_its_words_point_from_the_camera(
    side: str, halves: int, fov: float, x: float, y: float, yaw: float
) -> None:
    metres = f"{halves // 2}.5" if halves % 2 else f"{halves // 2}"
    answer = f"I see the red ball {SIDE_PHRASES[side][0]}, about {metres} m away. I go on.\nAction: forward small"
    seen = sighting(answer, "red", "ball", PlanarPose(x, y, yaw), fov)
    assert seen is not None
    off = np.array([seen.x - x - GO2_CAMERA * math.cos(yaw), seen.y - y - GO2_CAMERA * math.sin(yaw)])
    assert math.hypot(*off) == pytest.approx(halves / 2)
    # What stands at one column of the frame is farther off the axis where the frame is wider.
    wide = math.tan(math.radians(fov / 2))
    assert math.tan(wrap(seen.yaw - yaw)) == pytest.approx(wide * math.tan(math.radians(BEARINGS[side])), abs=1e-9)
    spread = np.array([[seen.xx, seen.xy], [seen.xy, seen.yy]])
    assert np.all(np.linalg.eigvalsh(spread) > 0.0) and seen.yaw_variance > 0.0
    assert spread @ off == pytest.approx((off @ spread @ off / (off @ off)) * off), "an axis is the line of sight"


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        (LEFT, None),
        (LEFT, PlanarPose(math.nan, 0.0, 0.0)),
        ("The silver bottle is on the left.\nAction: turn left medium", HERE),
        ("The silver bottle is about 2 m away.\nAction: forward large", HERE),
        ("I do not see the silver bottle. The red ball is on the left, about 2 m away.\nAction: stop", HERE),
        ("<think>The silver bottle is on the left, about 2 m away.</think>Action: not here", HERE),
    ],
)
def test_without_a_side_a_distance_or_a_pose_there_is_no_place(answer: str, place: PlanarPose | None) -> None:
    assert sighting(answer, "silver", "bottle", place) is None


def goal_asked(
    frames: FrameSettings | None, vocabulary: Vocabulary | None, guide: Guidance
) -> tuple[str, NavigationGoal]:
    goal = NavigationGoal("find the silver bottle", camera=frames)
    frame = Frame(b"", 0.0, 0.0, None, HERE)
    return goal.prompt(frame, vocabulary, ResponseOrder.REASON_FIRST, guide).text, goal


@pytest.mark.parametrize(
    ("frames", "known", "guide", "answer", "placed"),
    [
        (ASKED, True, Guidance.AUTO, LEFT, True),
        (FrameSettings(), True, Guidance.AUTO, LEFT, False),
        (ASKED, False, Guidance.AUTO, LEFT.replace("silver bottle", "object"), True),
        (ASKED, False, Guidance.AUTO, LEFT, False),
        (ASKED, False, Guidance.NEVER, LEFT.replace("silver bottle", "object"), False),
    ],
)
def test_a_goal_places_what_it_asked_for_if_it_is_to(
    frames: FrameSettings | None, known: bool, guide: Guidance, answer: str, placed: bool
) -> None:
    vocabulary = Vocabulary(("silver", "red"), ("bottle", "ball"), 2) if known else None
    _, goal = goal_asked(frames, vocabulary, guide)
    seen = goal.sighting(answer, Frame(b"", 0.0, 0.0, None, HERE))
    assert (seen is not None) == placed
    assert goal.sighting(answer, Frame(b"", 0.0, 0.0, None, None)) is None


def test_only_guided_prompts_tell_of_the_camera() -> None:
    words = Vocabulary(("silver", "red"), ("bottle", "ball"), 2)
    for other in (FrameSettings(camera_height_m=0.6, camera_pitch_deg=10.0, fov_deg=60.0, sightings=True), None):
        assert goal_asked(other, words, Guidance.AUTO)[0] == "find the silver bottle\nSeen: here 1/8"
    lines = goal_asked(FrameSettings(camera_height_m=0.6, camera_pitch_deg=-10.0), None, Guidance.AUTO)[0].split("\n")
    assert lines[1] == ("The camera is 0.6 m above the floor and looks 10 degrees up; its picture is 90 degrees wide.")
    assert len(lines) == 3 and "front camera" in lines[2]
    assert (
        "looks straight ahead" in camera_lines(ASKED)[0]
        and "'The object is on the left, about" in camera_lines(ASKED)[1]
    )
