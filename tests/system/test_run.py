"""A node's end: it has the time that its stop takes, whatever its callbacks do meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import rclpy
from rclpy.node import Node

from spec_vlm_nav.nodes.process import run, start_thread, steady_timer

STOP_S = 0.3


class Failing(Node):
    """Its callbacks fail, again and again, as on a message that they cannot read."""

    def __init__(self) -> None:
        super().__init__("failing")
        steady_timer(self, 0.01, self._fail)

    def _fail(self) -> None:
        raise KeyError("nobody expected this")


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put the process's signal handlers back, which `run` replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_node_whose_callbacks_fail_still_stops_the_robot_before_its_process_ends(threads: int) -> None:
    stopped: list[bool] = []

    def close(node: Node) -> None:
        time.sleep(STOP_S)
        stopped.append(rclpy.ok())

    with handlers_kept(), pytest.raises(KeyError):
        run(Failing, close, threads)
    assert stopped == [True]


class Crippled(Node):
    """One of its threads fails while the executor runs on."""

    def __init__(self) -> None:
        super().__init__("crippled")
        start_thread(self, "work", lambda: [].pop())


def test_a_node_that_lost_a_thread_ends_with_status_1_to_be_started_again(capfd: pytest.CaptureFixture[str]) -> None:
    with handlers_kept():
        assert run(Crippled) == 1
    assert "the thread work failed" in capfd.readouterr().err
