"""The verifier alone, for the machine that has the GPU.

Arguments: ros2 launch spec_vlm_nav verifier.launch.py --show-args.
"""

from launch import LaunchDescription

from spec_vlm_nav.graph import VERIFIER_GRAPH
from spec_vlm_nav.launching import describe


def generate_launch_description() -> LaunchDescription:
    """Return the launch description."""
    return describe(VERIFIER_GRAPH)
