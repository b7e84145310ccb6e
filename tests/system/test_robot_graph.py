"""The processes of a real robot, in a namespace, with the simulated robot in place of the Go2 in the root namespace."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from spec_vlm_nav.graph import GRAPHS, SIM_GRAPH
from spec_vlm_nav.runner import Runner, free_address
from tests.system.chain import FIND, Record, Robot, finish
from tests.system.conftest import Lines, until
from vlm_nav_evaluation.nodes.observer import Observer


def test_a_namespace_leaves_the_robots_own_topics_alone_and_a_bridge_that_died_comes_back(
    turning_model: Path, lines: Lines
) -> None:
    address, record = free_address(), Record()
    models = {"target_model": str(turning_model), "draft_model": str(turning_model), "verifier": address}
    given = {
        "namespace": "dog1", "camera": "none", "odom_topic": "/odom", "mode": "fsd", "verifier": address,
        "draft_model": str(turning_model),
    }  # fmt: skip
    with (
        Runner(SIM_GRAPH, {"seed": "3", **models}, lines) as simulator,
        Runner(GRAPHS["go2"], given, lines) as runner,
        Observer(record, namespace="dog1") as observer,
    ):
        simulator.start("verifier", "sim_go2")
        runner.start()
        runner.wait_until(lambda: observer.active, "all nodes active", 120.0)
        robot = Robot(runner, observer, record, given)
        goal = observer.send(FIND, 240.0)
        # The second turn begins when the first one has been measured by odometry.
        until(lambda: robot.turns() > 1, "the robot turns", 60.0)

        os.kill(runner.pid("go2_bridge"), signal.SIGKILL)
        runner.wait_until(lambda: not observer.active, "missed", 30.0)
        runner.wait_until(lambda: observer.active, "all nodes active again", 60.0)
        turned = robot.turns()
        until(lambda: robot.turns() > turned + 1, "the goal goes on", 60.0)
        goal.cancel()
        assert finish(robot, goal).cancelled
