"""The trail of a goal: its path stays short enough for a message, and decisions stand where they were taken."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.annotate import AMBER, GREEN, GREY, RED
from spec_vlm_nav.messages import CLOUD_VERIFIED, EDGE_ONLY, FALLBACK
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.trail import MOST_PLACES, Trail
from speculation.language.prompts import NOT_HERE, STOP, ActionKind, ActionSize, NavigationAction

FORWARD = NavigationAction(ActionKind.FORWARD, ActionSize.SMALL)
LEFT = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
PLACES = st.builds(PlanarPose, st.floats(-9.0, 9.0), st.floats(-9.0, 9.0), st.floats(-3.0, 3.0))


def at(x: float, yaw: float = 0.0) -> PlanarPose:
    return PlanarPose(x, 0.0, yaw)


@given(st.lists(st.none() | PLACES, max_size=200))
def test_the_path_follows_the_robot_in_steps(places: list[PlanarPose | None]) -> None:
    trail = Trail()
    for place in places:
        before = len(trail.path)
        grew = trail.moved(place)
        assert len(trail.path) == before + grew
        if place is not None:
            assert math.dist((place.x, place.y), (trail.path[-1].x, trail.path[-1].y)) <= 0.05
    assert all(place in places for place in trail.path)


def test_a_long_path_is_thinned_from_end_to_end() -> None:
    trail = Trail()
    for index in range(10 * MOST_PLACES):
        trail.moved(at(0.06 * index))
    assert MOST_PLACES / 4 <= len(trail.path) <= MOST_PLACES
    steps = [after.x - before.x for before, after in zip(trail.path, trail.path[1:], strict=False)]
    assert trail.path[0].x == 0.0 and max(steps) < 4 * min(steps)
    assert 0.06 * 10 * MOST_PLACES - trail.path[-1].x < max(steps) + 0.06


def test_decisions_stand_where_they_were_taken_and_point_where_they_lead() -> None:
    trail = Trail()
    trail.decided(7, 0, FORWARD, CLOUD_VERIFIED)
    assert trail.marks() == [], "nobody knows where"
    trail.moved(at(1.0, 0.5))
    trail.decided(7, 1, LEFT, EDGE_ONLY)
    trail.moved(at(1.0, 0.5 + LEFT.radians))
    trail.decided(7, 2, FORWARD, CLOUD_VERIFIED)
    trail.moved(at(2.0))
    trail.decided(7, 3, STOP, CLOUD_VERIFIED)
    trail.decided(7, 4, None, FALLBACK)
    trail.decided(7, 5, NOT_HERE, CLOUD_VERIFIED)
    turn, ahead, stop, hold, gone = trail.marks()
    assert (turn.kind, turn.x, turn.yaw, turn.colour) == ("arrow", 1.0, 0.5 + LEFT.radians, AMBER)
    assert (ahead.kind, ahead.size, ahead.colour) == ("arrow", 0.25, GREEN)
    balls = [(mark.kind, mark.x, mark.colour) for mark in (stop, hold, gone)]
    assert balls == [("ball", 2.0, RED), ("ball", 2.0, AMBER), ("ball", 2.0, GREY)]


def test_the_running_action_is_named_and_a_hold_has_its_reason() -> None:
    trail = Trail()
    trail.moved(at(0.0))
    trail.decided(7, 0, FORWARD, CLOUD_VERIFIED)
    trail.decided(7, 1, LEFT, CLOUD_VERIFIED)
    trail.moved(at(0.3))
    assert [(mark.group, mark.words) for mark in trail.marks(1)] == [
        ("decisions", ""), ("action", ""), ("action", "turn left large"),
    ]  # fmt: skip
    assert trail.marks(1)[2].x == 0.3, "words go with the robot"
    trail.moved(None)
    held = trail.marks(1, "no camera frame")
    assert [(mark.group, mark.words) for mark in held if mark.group != "decisions"] == [
        ("hold", ""), ("hold", "HOLD: no camera frame"),
    ]  # fmt: skip
    assert held[-1].x == 0.3, "where it was last"
    assert Trail().marks(0, "no camera frame") == []
