"""Heartbeats: a node shows at 20 Hz that it lives and is ready, and others notice when that ends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.node import Node
from std_msgs.msg import Header

from spec_vlm_nav.nodes.conversions import arrival
from spec_vlm_nav.nodes.process import start_thread, steady_timer
from spec_vlm_nav.nodes.topics import COMMAND_QOS

HEARTBEAT_HZ = 20.0
ALIVE_PERIOD_S = 0.1
BUSY_S = 0.5
"""An executor that ran nothing for so long hangs."""


class Heartbeat:
    """Publishes at 20 Hz on heartbeat/<node> while the node runs and `ready` holds, from a thread of its own.

    It beats for as long as the executor ran a callback within the last `busy_s` seconds: a node whose executor waits
    for the interpreter or for a core is not taken for a dead one, while one that hangs falls silent. To be closed
    before the node is destroyed.
    """

    def __init__(self, node: Node, ready: Callable[[], bool] = lambda: True, busy_s: float = BUSY_S) -> None:
        self._node, self._ready, self._busy_s = node, ready, busy_s
        self._publisher = node.create_publisher(Header, f"heartbeat/{node.get_name()}", COMMAND_QOS)
        self._ran_at = -math.inf
        self._end = threading.Event()
        # A group of its own, so that a busy node is not taken for a dead one.
        steady_timer(node, ALIVE_PERIOD_S, self._note, MutuallyExclusiveCallbackGroup())
        self._thread = start_thread(node, "heartbeat", self._run)

    def close(self) -> None:
        """End the thread; safe to repeat."""
        self._end.set()
        self._thread.join(timeout=1.0)

    def _note(self) -> None:
        self._ran_at = time.monotonic()

    def _run(self) -> None:
        while not self._end.wait(1.0 / HEARTBEAT_HZ):
            if time.monotonic() - self._ran_at <= self._busy_s and self._ready():
                stamp = self._node.get_clock().now().to_msg()
                self._publisher.publish(Header(stamp=stamp, frame_id=self._node.get_name()))


def on_heartbeat(subscribe: Callable[..., Any], name: str, received: Callable[[float], None]) -> None:
    """Call `received` with the steady time of every heartbeat of the node called `name`.

    `subscribe` is a `Reader`'s, or the function of that name with its node.
    """

    def beat(_: Header, info: Mapping[str, Any]) -> None:
        received(arrival(info))

    subscribe(Header, f"heartbeat/{name}", beat, COMMAND_QOS)
