"""A node's end: it has the time that its stop takes, whatever its callbacks do meanwhile."""

from __future__ import annotations

import signal
import time

import pytest
import rclpy
from rclpy.node import Node

from spec_vlm_nav.nodes.common import run, steady_timer

STOP_S = 0.3


class Failing(Node):
    """Its callbacks fail, again and again, as on a message that they cannot read."""

    def __init__(self) -> None:
        super().__init__("failing")
        steady_timer(self, 0.01, self._fail)

    def _fail(self) -> None:
        raise KeyError("nobody expected this")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_node_whose_callbacks_fail_still_stops_the_robot_before_its_process_ends(threads: int) -> None:
    stopped: list[bool] = []

    def close(node: Node) -> None:
        time.sleep(STOP_S)
        stopped.append(rclpy.ok())

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyError):
            run(Failing, close, threads)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert stopped == [True]
