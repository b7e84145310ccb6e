"""Simulated robot, bridge and the watchdog beside it: a bridge that freezes or dies leaves no robot that walks on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from std_msgs.msg import Bool

from spec_vlm_nav.process_graph import Graph, NodeSpec
from spec_vlm_nav.robots.go2 import SportApi
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
            until(lambda: notices(made, lines), "the watchdog notices a bridge that stands still for a moment")
            until(lambda: made.ready and observer.speed > 0.3, "the bridge drives again")
            yield made
        finally:
            driver.close()


def notices(dog: Dog, lines: Lines) -> bool:
    """Whether the watchdog has heard the bridge, which it may find late, and stops the robot when it is silent."""
    dog.walk()
    bridge = dog.runner.pid("go2_bridge")
    os.kill(bridge, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(bridge, signal.SIGCONT)
    return noticed(lines) > 0


def noticed(lines: Lines) -> int:
    """Return how often the watchdog said that it stopped the robot."""
    return lines.text("stop_watchdog").count(SAYS)


def test_the_robot_is_stopped_while_its_bridge_hangs_or_is_gone_unless_that_gave_it_up(lines: Lines, dog: Dog) -> None:
    before = noticed(lines)
    os.kill(dog.runner.pid("go2_bridge"), signal.SIGSTOP)
    stopped(lines, dog, before)
    os.kill(dog.runner.pid("go2_bridge"), signal.SIGCONT)
    until(lambda: dog.ready and dog.observer.speed > 0.3, "the bridge drives again")

    before = noticed(lines)
    os.kill(dog.runner.pid("go2_bridge"), signal.SIGKILL)
    stopped(lines, dog, before)
    dog.runner.start("go2_bridge")
    until(lambda: dog.ready and dog.observer.speed > 0.3, "a new bridge drives")

    def given_up() -> bool:
        dog.publish("e_stop", Bool(data=True))
        return not dog.ready and "e-stop" in lines.text("go2_bridge")

    until(given_up, "the heartbeat ends")
    until(dog.requests.rest, "the robot stands")
    before = noticed(lines)
    os.kill(dog.runner.pid("go2_bridge"), signal.SIGKILL)
    until(lambda: time.monotonic() - dog.beaten_at > 2.0, "the time in which a stop would come")
    assert noticed(lines) == before


def stopped(lines: Lines, dog: Dog, before: int) -> None:
    """Wait until the watchdog has stopped the robot, once more than `before`, and nobody drives it."""
    until(lambda: noticed(lines) > before, "the watchdog notices it")
    until(lambda: dog.requests.last_api == SportApi.STOP_MOVE, "the watchdog's stop")
    dog.stands()
    until(dog.requests.rest, "no request any more")
    assert dog.requests.last_api == SportApi.STOP_MOVE, "nobody drives the robot"
