"""A managed node of any name that does nothing, for tests of who manages it.

Its transitions go out on `transitions`, each with its time on the steady clock, which all processes share.

Run as a process, with `-r __node:=NAME`.
"""

from __future__ import annotations

import sys
import time

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from spec_vlm_nav.nodes.heartbeat import Heartbeat
from spec_vlm_nav.nodes.managed import ManagedNode, run_managed

KEPT = QoSProfile(depth=50, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Puppet(ManagedNode):
    """Beats while it is active."""

    def __init__(self) -> None:
        super().__init__("puppet")
        self._refuses = str(self.declare_parameter("refuses", "").value)
        self._takes_s = float(self.declare_parameter("takes_s", 0.0).value)
        self._transitions = self.create_publisher(String, "transitions", KEPT)
        self.heartbeat = Heartbeat(self, lambda: self.active)

    def configure(self) -> None:
        """See `ManagedNode`."""
        time.sleep(self._takes_s)
        self._note("configure")

    def activate(self) -> None:
        """See `ManagedNode`."""
        self._note("activate")

    def deactivate(self) -> None:
        """See `ManagedNode`."""
        self._note("deactivate")

    def cleanup(self) -> None:
        """See `ManagedNode`."""
        self._note("cleanup")

    def _note(self, transition: str) -> None:
        if transition == self._refuses:
            raise ValueError(f"the folder that {self.get_name()} needs is not there")
        self._transitions.publish(String(data=f"{time.monotonic():.6f} {transition} {self.get_name()}"))


if __name__ == "__main__":
    sys.exit(run_managed(Puppet))
