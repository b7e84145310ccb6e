"""What several nodes must agree on for a topic: qualities of service, and a name."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from spec_vlm_nav.parameters import NAV2

COMMAND_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
"""Only the newest command counts, and a late joiner must never be handed an old one."""
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""A subscriber that comes later gets the newest message."""
DRIVES = "go2_bridge/drives"
"""Topic of the bridge's tick thread for the watchdog beside it: Bool, whether the robot obeys velocities now."""


def velocities_of(motion_service: str) -> str:
    """Return the topic on which action_executor publishes velocities and go2_bridge takes them.

    nav2 publishes its own on cmd_vel, which only the executor reads then: it lets pass what its action allows.
    """
    return "cmd_vel_gated" if motion_service == NAV2 else "cmd_vel"
