"""Numbers of ROS messages as the project's own types, and times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from builtin_interfaces.msg import Duration, Time
from nav_msgs.msg import Odometry

from spec_vlm_nav.odometry import OdometrySample

LONGEST_WAIT_S = 2.0
"""A message is not believed to have waited for longer."""


def message_type(kind: str) -> Any:
    """Return the message class of a type such as unitree_api/msg/Request. Raises ImportError where it is not built."""
    package, _, name = kind.partition("/msg/")
    return getattr(import_module(f"{package}.msg"), name)


def constants_of(kind: Any) -> dict[int, str]:
    """Return the constants of a message class: the name of each number."""
    return {value: name for name in dir(kind) if name.isupper() and isinstance(value := getattr(kind, name), int)}


def arrival(info: Mapping[str, Any]) -> float:
    """Return the steady time at which a message arrived; `info` is what rclpy gives a callback beside the message.

    A message waits while the node is held up. Silence that began before it was read counts from its arrival.
    """
    waited = (time.time_ns() - (info["received_timestamp"] or 0)) * 1e-9
    # Not every middleware gives a time, and the machine's clock may have been set meanwhile.
    return time.monotonic() - (waited if 0.0 <= waited <= LONGEST_WAIT_S else 0.0)


def seconds_of(stamp: Time | Duration) -> float:
    """Return a stamp or duration in seconds, of either sign: rclpy's own class of times refuses negative ones."""
    return float(stamp.sec + stamp.nanosec * 1e-9)


def sample_of(odometry: Odometry, with_twist: bool = False) -> OdometrySample:
    """Return an odometry message that arrives now as plain numbers; its twist where the node uses that."""
    at, turn, twist = odometry.pose.pose.position, odometry.pose.pose.orientation, odometry.twist.twist
    return OdometrySample(
        (at.x, at.y, at.z),
        (turn.x, turn.y, turn.z, turn.w),
        seconds_of(odometry.header.stamp),
        time.monotonic(),
        (twist.linear.x, twist.linear.y, twist.angular.z) if with_twist else None,
    )


def to_duration(seconds: float) -> Duration:
    """Return a duration message."""
    return Duration(sec=int(seconds), nanosec=int(seconds % 1.0 * 1e9))
