"""A node of a test's own that lives beside the test, and calls others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from tests.system.conftest import until


class Spinning:
    """Spins a node in a thread of its own, from now until `close`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()
        self._clients: dict[str, Any] = {}

    def answer(self, ask: Callable[[], Any], what: str = "an answer") -> Any:
        """Have `ask` called in the node's thread and return what its future brings."""
        futures: list[Any] = []
        self.call(lambda: futures.append(ask()))
        until(lambda: bool(futures) and futures[0].done(), what)
        return futures[0].result()

    def service(self, kind: Any, name: str, request: Any = None) -> Any:
        """Return the answer of a service, once it is there."""
        if name not in self._clients:
            self._clients[name] = self.node.create_client(kind, name)
        client = self._clients[name]
        until(client.service_is_ready, f"the service {name}")
        return self.answer(lambda: client.call_async(request or kind.Request()), f"an answer of {name}")

    def change(self, node: str, transition: int) -> bool:
        """Ask a node for a transition and return whether it was made."""
        request = ChangeState.Request(transition=Transition(id=transition))
        return bool(self.service(ChangeState, f"{node}/change_state", request).success)

    def call(self, work: Callable[[], Any]) -> None:
        """Have `work` called in the node's thread."""
        self._executor.create_task(work)

    def close(self) -> None:
        """End the thread and destroy the node."""
        self._end.set()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()

    def _spin(self) -> None:
        while not self._end.is_set():
            self._executor.spin_once(timeout_sec=0.05)


class Client(Spinning):
    """A node in a ROS that lives as long as it does."""

    def __init__(self) -> None:
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        super().__init__(Node("client"))

    def close(self) -> None:
        """End the thread, the node and ROS."""
        super().close()
        rclpy.try_shutdown()
