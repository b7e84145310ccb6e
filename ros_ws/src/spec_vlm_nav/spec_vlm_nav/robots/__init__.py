"""The robots that the bridge can drive: a new one is a file here and its entry."""

from __future__ import annotations

from typing import Any

from spec_vlm_nav.robot import Robot
from spec_vlm_nav.robots.go2 import Go2

ROBOTS: dict[str, Robot[Any]] = {"go2": Go2()}
"""Robots by the name that the parameter `robot`, the launch file and the parameter file have."""


def robot_of(name: str) -> Robot[Any]:
    """Return the robot of a name. Raises ValueError for one that is not in the table."""
    if name not in ROBOTS:
        raise ValueError(f"robot {name!r} is none of {', '.join(ROBOTS)}")
    return ROBOTS[name]
