"""The processes of a real robot, in a namespace, with the simulated robot in place of the Go2 in the root namespace."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from spec_vlm_nav.goal_file import path_of
from spec_vlm_nav.graph import GRAPHS, SIM_GRAPH
from spec_vlm_nav.runner import Runner, free_address
from tests.system.chain import FIND, Record, Robot
from tests.system.conftest import LIMIT_S, Lines, until
from vlm_nav_evaluation.nodes.observer import Observer


def test_a_namespace_leaves_the_robots_own_topics_alone_and_a_goal_outlives_a_bridge_and_a_vlm_nav_that_died(
    turning_model: Path, lines: Lines, tmp_path: Path
) -> None:
    address, record, parameters = free_address(), Record(), tmp_path / "parameters.yaml"
    parameters.write_text("/**/go2_bridge:\n  ros__parameters: {stand_up_s: 0.5}\n")
    models = {"target_model": str(turning_model), "draft_model": str(turning_model), "verifier": address}
    given = {
        "namespace": "dog1", "camera": "none", "odom_topic": "/odom", "mode": "fsd", "verifier": address,
        "draft_model": str(turning_model), "params_file": str(parameters),
    }  # fmt: skip
    with (
        Runner(SIM_GRAPH, {"seed": "3", **models}, lines) as simulator,
        Runner(GRAPHS["go2"], given, lines) as runner,
        Observer(record, namespace="dog1") as observer,
    ):

        def dies(name: str) -> None:
            died = runner.pid(name)
            os.kill(died, signal.SIGKILL)
            runner.wait_until(lambda: runner.pid(name) != died, "started again", LIMIT_S)

        simulator.start("verifier", "sim_go2")
        runner.start()
        runner.wait_until(lambda: observer.active, "all nodes active", LIMIT_S)
        robot = Robot(runner, observer, record)
        ends = observer.send(FIND, 1200.0)
        # The second turn begins when the first one has been measured by odometry.
        until(lambda: robot.turns() > 1, "the robot turns")
        dies("go2_bridge")
        turned = robot.turns()
        until(lambda: robot.turns() > turned + 1, "the goal goes on")

        def knows() -> bool:
            return "Done: turn left small" in observer.last["vlm_nav/prompt"].data

        # One answer publishes its turn several times; a turn is done when odometry has shown it.
        until(knows, "the next prompt lists a turn")
        dies("vlm_nav")
        record.clear()
        until(lambda: robot.turns() > 0, "the robot turns again, although nobody sent the goal again")
        assert knows(), "it knows what was done"
        assert not ends
        observer.cancel()
        until(lambda: bool(ends), "the client hears of the end")
        assert (ends[0].code, ends[0].stopped) == ("CANCELLED", True)
        assert not path_of("", "/dog1/vlm_nav").exists()
        robot.close()
