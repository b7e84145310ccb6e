"""The processes of a real robot, in a namespace, with the simulated robot in place of the Go2 in the root namespace."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from spec_vlm_nav.graph import GRAPHS, SIM_GRAPH
from spec_vlm_nav.runner import Runner, free_address
from tests.system.chain import FIND, Record, Robot, finish
from tests.system.conftest import LIMIT_S, Lines, until
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
        runner.wait_until(lambda: observer.active, "all nodes active", LIMIT_S)
        robot = Robot(runner, observer, record)
        goal = robot.send(FIND, 1200.0)
        # The second turn begins when the first one has been measured by odometry.
        until(lambda: robot.turns() > 1, "the robot turns")

        died = runner.pid("go2_bridge")
        os.kill(died, signal.SIGKILL)
        runner.wait_until(lambda: runner.pid("go2_bridge") != died, "started again", LIMIT_S)
        turned = robot.turns()
        # A turn is followed by another one when odometry has shown it, so the new bridge drives the robot.
        until(lambda: robot.turns() > turned + 1, "the goal goes on")
        goal.cancel()
        assert finish(robot, goal).cancelled
        robot.close()
