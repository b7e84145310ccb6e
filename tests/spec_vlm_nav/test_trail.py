"""The trail of a goal: its path stays short enough for a message, and decisions stand where they were taken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("visualization_msgs", reason="no ROS 2 here; run through scripts/with_env")
from visualization_msgs.msg import Marker

from spec_vlm_nav.annotate import AMBER, GREEN, GREY, RED
from spec_vlm_nav.messages import CLOUD_VERIFIED, EDGE_ONLY, FALLBACK
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.nodes.markers import to_markers
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


def marks(trail: Trail, running_step: int | None = None, holding: str = "") -> list[Marker]:
    """Return the markers of a trail behind the order to forget those before."""
    clear, *found = to_markers(trail, "odom", running_step, holding).markers
    assert clear.action == Marker.DELETEALL and {each.header.frame_id for each in (clear, *found)} == {"odom"}
    return found


def colour(marker: Marker) -> tuple[int, ...]:
    return tuple(round(255 * part) for part in (marker.color.r, marker.color.g, marker.color.b))


def test_decisions_stand_where_they_were_taken_and_point_where_they_lead() -> None:
    trail = Trail()
    trail.decided(7, 0, FORWARD, CLOUD_VERIFIED)
    assert marks(trail) == [], "nobody knows where"
    trail.moved(at(1.0, 0.5))
    trail.decided(7, 1, LEFT, EDGE_ONLY)
    trail.moved(at(1.0, 0.5 + LEFT.radians))
    trail.decided(7, 2, FORWARD, CLOUD_VERIFIED)
    trail.moved(at(2.0))
    trail.decided(7, 3, STOP, CLOUD_VERIFIED)
    trail.decided(7, 4, None, FALLBACK)
    trail.decided(7, 5, NOT_HERE, CLOUD_VERIFIED)
    turn, ahead, *balls = marks(trail)
    assert (turn.type, turn.pose.position.x, colour(turn)) == (Marker.ARROW, 1.0, AMBER)
    assert 2.0 * math.asin(turn.pose.orientation.z) == pytest.approx(0.5 + LEFT.radians)
    assert (ahead.type, ahead.scale.x, colour(ahead)) == (Marker.ARROW, 0.25, GREEN)
    assert {(ball.type, ball.pose.position.x) for ball in balls} == {(Marker.SPHERE, 2.0)}
    assert [colour(ball) for ball in balls] == [RED, AMBER, GREY]


def test_the_running_action_is_named_and_a_hold_has_its_reason() -> None:
    trail = Trail()
    trail.moved(at(0.0))
    trail.decided(7, 0, FORWARD, CLOUD_VERIFIED)
    trail.decided(7, 1, LEFT, CLOUD_VERIFIED)
    trail.moved(at(0.3))
    running = marks(trail, 1)
    assert [(mark.ns, mark.text) for mark in running] == [
        ("decisions", ""), ("action", ""), ("action", "turn left large"),
    ]  # fmt: skip
    assert running[2].pose.position.x == 0.3, "words go with the robot"
    trail.moved(None)
    held = marks(trail, 1, "no camera frame")
    assert [(mark.ns, mark.text) for mark in held if mark.ns != "decisions"] == [
        ("hold", ""), ("hold", "HOLD: no camera frame"),
    ]  # fmt: skip
    assert held[-1].pose.position.x == 0.3, "where it was last"
    assert marks(Trail(), 0, "no camera frame") == []
