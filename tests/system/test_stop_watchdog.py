"""Simulated robot, bridge and the watchdog beside it: a bridge that freezes or dies leaves no robot that walks on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from std_msgs.msg import Bool

from spec_vlm_nav.process_graph import Graph, NodeSpec
from spec_vlm_nav.robots.go2 import SPORT, SportApi
from spec_vlm_nav.runner import Runner
from tests.system.conftest import Lines, until
from tests.system.test_bridge import Dog, Driver, Requests
from vlm_nav_evaluation.nodes.observer import Observer

SAYS = "silent while it drove: the robot is stopped"


@pytest.fixture
def dog(lines: Lines, forked_nodes: None) -> Iterator[Dog]:
    """A simulated robot that its bridge made stand, with the watchdog."""
    simulated = NodeSpec("sim_go2", "sim.yaml", (("seed", 3),))
    bridge = NodeSpec("go2_bridge", "sim.yaml", (("autostart", True),), respawns=0)
    graph = Graph((), (simulated, bridge, NodeSpec("stop_watchdog", "sim.yaml")))
    with Runner(graph, {}, lines) as runner, Observer() as observer:
        runner.start()
        driver = Driver(observer)
        made = Dog(observer, Requests(observer), driver, runner)
        try:
            until(lambda: made.ready and "ground_truth" in observer.last, "bridge ready")
            yield made
        finally:
            driver.close()


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_the_robot_is_stopped_while_its_bridge_hangs_or_is_gone(lines: Lines, dog: Dog, fault: signal.Signals) -> None:
    senders = SPORT.requests.name.lstrip("/")
    until(lambda: dog.node.count_publishers(senders) >= 2, "bridge and watchdog, both known here")
    dog.walk()
    os.kill(dog.runner.pid("go2_bridge"), fault)
    until(lambda: dog.requests.last_api == SportApi.STOP_MOVE, "the watchdog's stop")
    dog.stands()
    until(lambda: SAYS in lines.text("stop_watchdog"), "its line")
    until(dog.requests.rest, "no request any more")
    assert dog.requests.last_api == SportApi.STOP_MOVE, "nobody drives the robot"
    if fault is signal.SIGSTOP:  # else its end is waited for
        os.kill(dog.runner.pid("go2_bridge"), signal.SIGKILL)


def test_a_bridge_that_gave_the_robot_up_by_itself_is_not_taken_for_a_dead_one(lines: Lines, dog: Dog) -> None:
    until(lambda: (dog.publish("e_stop", Bool(data=True)), not dog.ready)[1], "the heartbeat ends")
    os.kill(dog.runner.pid("go2_bridge"), signal.SIGKILL)
    until(lambda: time.monotonic() - dog.beaten_at > 2.0, "the time in which a stop would come")
    assert SAYS not in lines.text("stop_watchdog")
