"""Simulated Go2, verifier, navigation: everything on this machine.

Arguments: ros2 launch spec_vlm_nav sim.launch.py --show-args.
"""

from launch import LaunchDescription

from spec_vlm_nav.graph import SIM_GRAPH
from spec_vlm_nav.launching import describe


def generate_launch_description() -> LaunchDescription:
    """Return the launch description."""
    return describe(SIM_GRAPH)
