"""A recorded bag through the real navigation node and a verifier on this machine; nothing moves.

Arguments: ros2 launch spec_vlm_nav replay.launch.py --show-args.
"""

from launch import LaunchDescription

from spec_vlm_nav.graph import REPLAY_GRAPH
from spec_vlm_nav.launching import describe


def generate_launch_description() -> LaunchDescription:
    """Return the launch description."""
    return describe(REPLAY_GRAPH)
