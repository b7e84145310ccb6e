"""Simulated robot, bridge and the watchdog beside it: a bridge that freezes or dies leaves no robot that walks on."""

from __future__ import annotations

import os
import signal

import pytest
from unitree_api.msg import Request

from spec_vlm_nav.graph import Graph, NodeSpec
from spec_vlm_nav.robots.go2 import SPORT, SportApi
from spec_vlm_nav.runner import Runner
from tests.system.conftest import Lines, until
from tests.system.test_bridge import Dog, Driver, Requests
from vlm_nav_evaluation.nodes.observer import Observer


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_the_robot_is_stopped_while_its_bridge_hangs_or_is_gone(
    lines: Lines, forked_nodes: None, fault: signal.Signals
) -> None:
    simulated = NodeSpec("sim_go2", "sim.yaml", (("seed", 3),))
    bridge = NodeSpec("go2_bridge", "sim.yaml", (("autostart", True),), respawns=0)
    graph = Graph((), (simulated, bridge, NodeSpec("stop_watchdog", "sim.yaml")))
    with Runner(graph, {}, lines) as runner, Observer() as observer:
        runner.start()
        dog = Dog(observer, Requests(observer), Driver(observer), runner)
        until(lambda: dog.ready and "ground_truth" in observer.last, "bridge ready")
        dog.walk()
        requests: list[int] = []
        name = SPORT.requests.name.lstrip("/")
        dog.node.create_subscription(Request, name, lambda each: requests.append(each.header.identity.api_id), 50)
        until(lambda: SportApi.MOVE in requests, "requests of the bridge")
        os.kill(runner.pid("go2_bridge"), fault)
        until(lambda: SportApi.STOP_MOVE in requests, "the watchdog's stop")
        dog.stands()
        stopped = requests[requests.index(SportApi.STOP_MOVE) :]
        assert set(stopped) == {SportApi.STOP_MOVE}, "nobody drove the robot meanwhile"
        until(lambda: "go2_bridge is silent: the robot is stopped" in lines.text("stop_watchdog"), "its line")
