"""A trail as the messages that RViz and Foxglove show."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from geometry_msgs.msg import Pose, PoseStamped, TransformStamped
from nav_msgs.msg import Odometry, Path
from visualization_msgs.msg import Marker, MarkerArray

from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.trail import Mark

BASE = "base_link"
"""Frame of the robot (REP 105), where odometry names none."""
SHAFT_M = 0.05
SHAPES = {"arrow": Marker.ARROW, "ball": Marker.SPHERE, "words": Marker.TEXT_VIEW_FACING}


def to_path(places: Iterable[PlanarPose], frame: str, stamp: Any) -> Path:
    """Return places in `frame` as a path."""
    path = Path()
    path.header.frame_id, path.header.stamp = frame, stamp
    path.poses = [PoseStamped(header=path.header, pose=_pose(place.x, place.y, 0.0, place.yaw)) for place in places]
    return path


def to_markers(marks: Iterable[Mark], frame: str) -> MarkerArray:
    """Return all marks in `frame`, behind an order to forget those before.

    What is gone must go, and a viewer that comes later gets only the last message. Without a stamp: where a mark stands
    does not change with the robot's place.
    """
    clear = Marker(action=Marker.DELETEALL)
    clear.header.frame_id = frame
    return MarkerArray(markers=[clear, *(_marker(number, mark, frame) for number, mark in enumerate(marks))])


def to_transform(odometry: Odometry) -> TransformStamped:
    """Return where odometry puts the robot, as a transform from its own frame."""
    transform = TransformStamped(header=odometry.header, child_frame_id=odometry.child_frame_id or BASE)
    at, to = odometry.pose.pose.position, transform.transform.translation
    to.x, to.y, to.z = at.x, at.y, at.z
    transform.transform.rotation = odometry.pose.pose.orientation
    return transform


def _marker(number: int, mark: Mark, frame: str) -> Marker:
    marker = Marker(ns=mark.group, id=number, type=SHAPES[mark.kind], action=Marker.ADD, text=mark.words)
    marker.header.frame_id = frame
    marker.pose = _pose(mark.x, mark.y, mark.z, mark.yaw)
    thick = SHAFT_M if mark.kind == "arrow" else mark.size
    marker.scale.x, marker.scale.y, marker.scale.z = mark.size, thick, thick
    marker.color.r, marker.color.g, marker.color.b = (part / 255.0 for part in mark.colour)
    marker.color.a = mark.opacity
    return marker


def _pose(x: float, y: float, z: float, yaw: float) -> Pose:
    pose = Pose()
    pose.position.x, pose.position.y, pose.position.z = x, y, z
    pose.orientation.z, pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    return pose
