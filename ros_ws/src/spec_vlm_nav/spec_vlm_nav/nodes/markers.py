"""A trail as the messages that RViz and Foxglove show: path, transform and markers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from geometry_msgs.msg import Pose, PoseStamped, TransformStamped
from nav_msgs.msg import Odometry, Path
from visualization_msgs.msg import Marker, MarkerArray

from spec_vlm_nav.annotate import AMBER, END_COLOURS, GREEN, SOURCE_COLOURS, WHITE, Colour
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.trail import PlacedDecision, Trail

BASE = "base_link"
"""Frame of the robot (REP 105), where odometry names none."""
SHAFT_M, TURN_ARROW_M, TEXT_M, BALL_M = 0.05, 0.3, 0.12, 0.15
LABEL_ABOVE_M = 0.6


def to_path(places: Iterable[PlanarPose], frame: str, stamp: Any) -> Path:
    """Return places in `frame` as a path."""
    path = Path()
    path.header.frame_id, path.header.stamp = frame, stamp
    path.poses = [PoseStamped(header=path.header, pose=_pose(place.x, place.y, 0.0, place.yaw)) for place in places]
    return path


def to_transform(odometry: Odometry) -> TransformStamped:
    """Return where odometry puts the robot, as a transform from its own frame."""
    transform = TransformStamped(header=odometry.header, child_frame_id=odometry.child_frame_id or BASE)
    at, to = odometry.pose.pose.position, transform.transform.translation
    to.x, to.y, to.z = at.x, at.y, at.z
    transform.transform.rotation = odometry.pose.pose.orientation
    return transform


def to_markers(trail: Trail, frame: str, running_step: int | None = None, holding: str = "") -> MarkerArray:
    """Return all decisions, the one that is carried out now (`running_step`), and why the robot holds.

    An order to forget those before comes first: what is gone must go, and a viewer that comes later gets only the last
    message. Without a stamp: where a marker stands does not change with the robot's place.
    """
    markers = [Marker(action=Marker.DELETEALL), *_markers(trail, running_step, holding)]
    for number, marker in enumerate(markers):
        marker.header.frame_id, marker.id = frame, number
    return MarkerArray(markers=markers)


def _markers(trail: Trail, running_step: int | None, holding: str) -> Iterator[Marker]:
    for decision in trail.decisions:
        runs = decision.step == running_step and not holding
        yield _decision("action" if runs else "decisions", decision, 1.0 if runs else 0.5)
        if runs and decision.action is not None:
            yield _words("action", decision.action.text, WHITE, trail.place or decision.place)
    if holding and (trail.place or trail.path):
        place = trail.place or trail.path[-1]
        yield _ball("hold", place, 2.0 * BALL_M, AMBER, 0.6)
        yield _words("hold", f"HOLD: {holding}", AMBER, place)


def _decision(group: str, decision: PlacedDecision, opacity: float) -> Marker:
    """Return the arrow of a motion, or the ball of a HOLD or of what ends a goal, at the place of its decision."""
    place, action = decision.place, decision.action
    if action is None or not action.kind.moves:
        return _ball(group, place, BALL_M, AMBER if action is None else END_COLOURS[action], opacity)
    pose = _pose(place.x, place.y, 0.02, place.yaw + action.radians)
    size = action.metres or TURN_ARROW_M, SHAFT_M, SHAFT_M
    return _marker(group, Marker.ARROW, pose, size, SOURCE_COLOURS.get(decision.source, GREEN), opacity)


def _ball(group: str, place: PlanarPose, size: float, colour: Colour, opacity: float) -> Marker:
    return _marker(group, Marker.SPHERE, _pose(place.x, place.y, 0.0, 0.0), (size, size, size), colour, opacity)


def _words(group: str, words: str, colour: Colour, place: PlanarPose) -> Marker:
    pose = _pose(place.x, place.y, LABEL_ABOVE_M, 0.0)
    marker = _marker(group, Marker.TEXT_VIEW_FACING, pose, (TEXT_M, TEXT_M, TEXT_M), colour, 1.0)
    marker.text = words
    return marker


def _marker(
    group: str, kind: int, pose: Pose, size: tuple[float, float, float], colour: Colour, opacity: float
) -> Marker:
    """Return a marker of a group, each of which a viewer can switch off."""
    marker = Marker(ns=group, type=kind, action=Marker.ADD, pose=pose)
    marker.scale.x, marker.scale.y, marker.scale.z = size
    marker.color.r, marker.color.g, marker.color.b = (part / 255.0 for part in colour)
    marker.color.a = opacity
    return marker


def _pose(x: float, y: float, z: float, yaw: float) -> Pose:
    pose = Pose()
    pose.position.x, pose.position.y, pose.position.z = x, y, z
    pose.orientation.z, pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    return pose
