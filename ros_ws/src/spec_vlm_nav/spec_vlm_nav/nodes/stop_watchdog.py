"""Stops the robot when go2_bridge falls silent while it drives.

It is a process of its own that can send nothing but the stop. A robot obeys the last request of a bridge that froze or
was killed, a Go2 for a second.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from std_msgs.msg import Bool

from spec_vlm_nav.nodes.conversions import arrival, message_type
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run, run_first, start_thread
from spec_vlm_nav.nodes.subscriptions import Reader
from spec_vlm_nav.nodes.topics import COMMAND_QOS, DRIVES
from spec_vlm_nav.parameters import STOP_WATCHDOG
from spec_vlm_nav.robots import robot_of
from spec_vlm_nav.safety import LastStop


class StopWatchdog(Node):
    """Sends the robot's stop, and what stops each of its motion services; it makes no other request."""

    def __init__(self) -> None:
        super().__init__("stop_watchdog")
        chosen = settings(self, STOP_WATCHDOG)
        self._robot = robot = robot_of(chosen.robot)
        # The bridge may drive by any of them.
        halts = [halt for name in robot.motion_services for halt in robot.driven_by(name).stop_too]
        self._stops = [robot.stop, *halts]
        self._logic, self._stopping = LastStop(chosen.watchdog_timeout), False
        self._senders = {
            service: self.create_publisher(message_type(service.requests.kind), service.requests.name.lstrip("/"), 10)
            for service in robot.services
        }
        self._reader = Reader(self)
        self._reader.subscribe(Bool, DRIVES, self._on_drives, COMMAND_QOS)
        if robot.remote is not None:
            remote = robot.remote
            name = remote.name.lstrip("/")
            self._reader.subscribe(message_type(remote.kind), name, self._on_remote, qos_profile_sensor_data)
        self._end = threading.Event()
        self._thread = start_thread(self, "watch", self._watch)

    def destroy_node(self) -> None:
        """End the thread and destroy the node."""
        self._end.set()
        self._thread.join()
        super().destroy_node()

    def _watch(self) -> None:
        while not self._end.is_set():
            self._reader.take(self._logic.wait(time.monotonic()))
            if self._logic.due(time.monotonic()):
                self._stop()

    def _on_drives(self, message: Bool, info: Mapping[str, Any]) -> None:
        self._logic.on_bridge(message.data, arrival(info))
        self._stopping = False

    def _on_remote(self, message: Any) -> None:
        if self._robot.read_remote(message):
            self._logic.on_remote(time.monotonic())

    def _stop(self) -> None:
        for make in self._stops:
            request = make(time.monotonic_ns())
            service = self._robot.service_of(request)
            message = message_type(service.requests.kind)()
            self._robot.write(request, message)
            self._senders[service].publish(message)
        if not self._stopping:
            self._stopping = True
            self.get_logger().warning("go2_bridge fell silent while it drove: the robot is stopped")


def main() -> None:
    """Run the node, before other programs."""
    run_first()
    sys.exit(run(StopWatchdog))


if __name__ == "__main__":
    main()
