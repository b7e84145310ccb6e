"""A goal outlives the vlm_nav that led it: real processes, one of them killed in the middle of a goal."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from action_msgs.msg import GoalStatus
from action_msgs.srv import CancelGoal
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from lifecycle_msgs.msg import Transition
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import ActionStatus
from std_msgs.msg import Header

from spec_vlm_nav.goal_file import GoalFile, KeptGoal, now, path_of
from spec_vlm_nav.interlock import LATCHES
from spec_vlm_nav.nodes.topics import COMMAND_QOS
from speculation.machine_info import machine_id
from tests.system.chain import CODES, FIND, simulated
from tests.system.conftest import LIMIT_S, Lines, until
from tests.system.test_vlm_nav import Client, node_of

ID = "0123456789abcdef" * 2
DONE = "Done: turn left small"
GET_RESULT = NavigateByInstruction.Impl.GetResultService


def test_a_goal_goes_on_and_its_client_hears_of_its_end(turning_model: Path, lines: Lines, forked_nodes: None) -> None:
    with simulated(turning_model, lines) as robot:
        ends = robot.observer.send(FIND, 1200.0)
        prompts = robot.observer.last
        # The executor's report on a turn is there before the goal that knows of it is kept.
        until(lambda: robot.observer.speed > 0.2 and robot.turns() > 3, "it turns a second time")
        died = robot.runner.pid("vlm_nav")
        os.kill(died, signal.SIGKILL)
        robot.runner.wait_until(lambda: robot.runner.pid("vlm_nav") != died, "started again", LIMIT_S)
        robot.record.clear()
        until(lambda: robot.turns() > 0, "the robot turns again, although nobody sent the goal again")
        assert DONE in prompts["vlm_nav/prompt"].data, "it knows what was done"
        assert not ends
        robot.observer.cancel()
        until(lambda: bool(ends), "the client hears of the end")
        assert (ends[0].code, ends[0].stopped) == ("CANCELLED", True)
        assert not path_of("", "/vlm_nav").exists()


class Robot(Client):
    """A client with stand-ins for the bridge and the executor."""

    def __init__(self, latches: int) -> None:
        super().__init__()
        self._latches = latches
        self._beats = self.node.create_publisher(Header, "heartbeat/go2_bridge", COMMAND_QOS)
        self._lines = self.node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._statuses = self.node.create_publisher(ActionStatus, "action_status", 10)
        self.node.create_timer(0.05, self._live)

    def cancel(self) -> None:
        """Cancel every goal that is known."""
        self._spinning.service(CancelGoal, "navigate_by_instruction/_action/cancel_goal")

    def kept_result(self) -> Any:
        """Return the result of the kept goal, None while no such goal is known."""
        request = GET_RESULT.Request()
        request.goal_id.uuid = list(bytes.fromhex(ID))
        answer = self._spinning.service(GET_RESULT, "navigate_by_instruction/_action/get_result", request)
        return None if answer.status == GoalStatus.STATUS_UNKNOWN else answer.result

    def _live(self) -> None:
        self._beats.publish(Header())
        self._statuses.publish(ActionStatus())
        line = DiagnosticStatus(name="go2_bridge: robot", values=[KeyValue(key=LATCHES, value=str(self._latches))])
        self._lines.publish(DiagnosticArray(status=[line]))


@pytest.mark.parametrize(
    ("latches", "why"),
    [(1, "an e-stop or the remote control has taken the robot since it began"), (0, "cancelled")],
    ids=["e-stop", "cancelled"],
)
def test_a_robot_does_not_begin_to_move_by_itself(turning_model: Path, tmp_path: Path, latches: int, why: str) -> None:
    path = path_of("", "/vlm_nav")
    file = GoalFile(path)
    file.close()
    kept = KeptGoal(ID, FIND, 200.0, latches=0, kernel=machine_id(), at=now())
    path.write_bytes(msgspec.json.encode(kept))
    robot = Robot(latches)
    try:
        with node_of(turning_model, tmp_path / "log", "mode:=edge"):
            until(robot.ready, "vlm_nav is there")
            if latches:
                assert robot.change(Transition.TRANSITION_CONFIGURE) and robot.change(Transition.TRANSITION_ACTIVATE)
            if why == "cancelled":
                until(lambda: "goes on after a restart" in (tmp_path / "log").read_text(), "it waits for the robot")
                robot.cancel()
            ended = None
            while ended is None:
                ended = robot.kept_result()
            assert ended.error_msg.startswith("vlm_nav was started again and does not go on with the goal: ")
            assert why in ended.error_msg and ended.actions_executed == 0
            assert ended.error_code == (CODES.CANCELLED if why == "cancelled" else CODES.SHUTDOWN)
            until(lambda: not path.exists(), "the goal is kept no more")
        assert not robot.turns()
    finally:
        robot.close()
