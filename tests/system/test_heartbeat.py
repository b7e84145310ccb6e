"""A heartbeat of its own thread: it outlives a busy executor, not a hanging one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from spec_vlm_nav.nodes.heartbeat import Heartbeat, on_heartbeat
from spec_vlm_nav.nodes.subscriptions import subscribe
from tests.system.conftest import LIMIT_S, until
from tests.system.spinning import Client

LONG_S, SHORT_S = 60.0, 0.15


class Ears(Client):
    """Counts the heartbeats of the nodes called `busy` and `hanging`."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = 0
        for name in ("busy", "hanging"):
            on_heartbeat(partial(subscribe, self.node), name, self._heard)

    def _heard(self, _: float) -> None:
        self.beats += 1


class Beating:
    """A node on an executor of one thread, which spins only when told to."""

    def __init__(self, name: str, busy_s: float, ears: Ears) -> None:
        self.node, self._ears = Node(name), ears
        self.ready = True
        self.heartbeat = Heartbeat(self.node, lambda: self.ready, busy_s)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)

    def spin_until_heard(self) -> None:
        before, end = self._ears.beats, time.monotonic() + LIMIT_S
        while self._ears.beats <= before + 1:
            assert time.monotonic() < end, "no heartbeat"
            self._executor.spin_once(timeout_sec=0.05)

    def close(self) -> None:
        self.heartbeat.close()
        self._executor.shutdown()
        self.node.destroy_node()


@pytest.fixture
def ears() -> Iterator[Ears]:
    """What another node hears."""
    with closing(Ears()) as listener:
        yield listener


def quiet(ears: Ears) -> bool:
    """Whether nothing was heard for a moment, in which several beats would have come."""
    before = ears.beats
    time.sleep(4 * SHORT_S)
    return ears.beats == before


def test_beats_outlive_a_busy_executor_and_end_with_one_that_hangs_or_while_the_node_is_not_ready(ears: Ears) -> None:
    busy, hanging = Beating("busy", LONG_S, ears), Beating("hanging", SHORT_S, ears)
    assert quiet(ears) and ears.beats == 0, "nothing is said before an executor has run"
    busy.spin_until_heard()
    before = ears.beats
    until(lambda: ears.beats > before + 5, "beats without the executor")
    busy.ready = False
    until(lambda: quiet(ears), "silence of a node that is not ready")
    for _ in range(2):
        hanging.spin_until_heard()
        until(lambda: quiet(ears), "silence of a node whose executor hangs")
    busy.close()
    hanging.close()
