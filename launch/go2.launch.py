"""Navigation on a real Go2; the verifier runs elsewhere.

Arguments: ros2 launch spec_vlm_nav go2.launch.py --show-args.
"""

from launch import LaunchDescription

from spec_vlm_nav.graph import GRAPHS
from spec_vlm_nav.launching import describe


def generate_launch_description() -> LaunchDescription:
    """Return the launch description."""
    return describe(GRAPHS["go2"])
