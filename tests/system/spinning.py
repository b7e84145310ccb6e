"""A node of a test's own that lives beside the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node


class Spinning:
    """Spins a node in a thread of its own, from now until `close`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Any]) -> None:
        """Have `work` called in the node's thread."""
        self._executor.create_task(work)

    def close(self) -> None:
        """End the thread and destroy the node."""
        self._end.set()
        self._thread.join()
        self._executor.shutdown()
        self._node.destroy_node()

    def _spin(self) -> None:
        while not self._end.is_set():
            self._executor.spin_once(timeout_sec=0.05)
