"""Verifiers that run and say nothing: real ones under SIGSTOP, in the middle of a goal."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from spec_vlm_nav.graph import VERIFIER_GRAPH
from spec_vlm_nav.messages import CLOUD_VERIFIED
from spec_vlm_nav.runner import Runner, free_address
from tests.system.chain import CODES, FIND, TURN_LEFT, finish, simulated
from tests.system.conftest import Lines, until


def test_the_next_verifier_of_the_list_goes_on_and_without_any_the_goal_ends_with_the_reason(
    turning_model: Path, lines: Lines, forked_nodes: None, tmp_path: Path
) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text("/**/vlm_nav:\n  ros__parameters: {degraded_s: 0.0, link_lost_s: 10.0}\n")
    with ExitStack() as stack:
        verifiers, addresses = [], [free_address(), free_address()]
        for address in addresses:
            given = {"target_model": str(turning_model), "verifier": address}
            verifiers.append(stack.enter_context(Runner(VERIFIER_GRAPH, given, lines)))
            verifiers[-1].start()

        def freeze(number: int) -> None:
            pid = verifiers[number].pid("verifier")
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)

        listed = {"verifier": ",".join(addresses), "start_verifier": "false", "params_file": str(parameters)}
        robot = stack.enter_context(simulated(turning_model, lines, **listed))
        goal = robot.send(FIND, 1200.0)
        until(lambda: robot.turns() > 2, "the robot turns")
        freeze(0)
        robot.record.clear()
        until(lambda: robot.turns() > 4, "the next one goes on with the goal, behind what the first had committed")
        newest = robot.observer.last["navigation_action"]
        assert (newest.kind, newest.source) == (TURN_LEFT, CLOUD_VERIFIED) and goal.wait(0.0) is None
        freeze(1)
        end = finish(robot, goal)
        assert end.error_code == CODES.LINK_LOST and "the robot waited 10 s for it" in end.message, end.message
        assert any(address in end.message for address in addresses)
        until(lambda: robot.stands, "the robot stands")
