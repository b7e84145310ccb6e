"""What keeps vlm_nav from taking up a kept goal; test_robot_graph.py kills one in the middle of a goal."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from action_msgs.msg import GoalStatus
from action_msgs.srv import CancelGoal
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import ActionStatus
from std_msgs.msg import Header

from spec_vlm_nav.goal_file import GoalFile, KeptGoal, now, path_of
from spec_vlm_nav.interlock import LATCHES
from spec_vlm_nav.nodes.topics import COMMAND_QOS
from spec_vlm_nav.nodes.vlm_nav import VlmNav
from speculation.machine_info import machine_id
from tests.system.chain import CODES, FIND
from tests.system.conftest import until
from tests.system.test_vlm_nav import UP, Robot, node_of

ID = "0123456789abcdef" * 2
GET_RESULT = NavigateByInstruction.Impl.GetResultService


class WholeRobot(Robot):
    """A robot with stand-ins for the bridge and the executor."""

    def __init__(self, latches: int) -> None:
        super().__init__()
        self._latches = latches
        self._beats = self.node.create_publisher(Header, "heartbeat/go2_bridge", COMMAND_QOS)
        self._lines = self.node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._statuses = self.node.create_publisher(ActionStatus, "action_status", 10)
        self.node.create_timer(0.05, self._live)

    def cancel(self) -> None:
        """Cancel every goal that is known."""
        self.service(CancelGoal, "navigate_by_instruction/_action/cancel_goal")

    def kept_result(self) -> Any:
        """Return the result of the kept goal, None while no such goal is known."""
        request = GET_RESULT.Request()
        request.goal_id.uuid = list(bytes.fromhex(ID))
        answer = self.service(GET_RESULT, "navigate_by_instruction/_action/get_result", request)
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
    with closing(WholeRobot(latches)) as robot, node_of(turning_model, tmp_path / "log", "mode:=edge"):
        until(robot.ready, "vlm_nav is there")
        if latches:
            assert robot.goes(*UP)
        else:
            until(lambda: "goes on after a restart" in (tmp_path / "log").read_text(), "it waits for the robot")
            robot.cancel()
        ended = None
        while ended is None:
            ended = robot.kept_result()
        assert ended.error_msg.startswith("vlm_nav was started again and does not go on with the goal: ")
        assert why in ended.error_msg and ended.actions_executed == 0
        assert ended.error_code == (CODES.SHUTDOWN if latches else CODES.CANCELLED)
        until(lambda: not path.exists(), "the goal is kept no more")
        assert not robot.turns()


@pytest.mark.parametrize("runs", [True, False], ids=["it runs", "it has ended"])
def test_a_goal_of_before_the_restart_does_not_end_one_that_began_meanwhile(runs: bool) -> None:
    """The newer goal begins between the last look at whether the older one may go on and its beginning."""
    newer, kept = SimpleNamespace(finish=pytest.fail), KeptGoal(ID, FIND, 200.0)
    forgone, aborted = list[Any](), list[bool]()
    handle = SimpleNamespace(request=None, is_cancel_requested=False, abort=lambda: aborted.append(True))
    resumption = SimpleNamespace(keeps=lambda goal: runs and goal is kept, forgo=forgone.append)
    node: Any = SimpleNamespace(
        _kept_of=lambda _: kept, _goal_of=lambda *_: None, _goal_lock=Lock(), _current=newer if runs else None,
        active=True, resumption=resumption, get_logger=lambda: logging.getLogger("vlm_nav"),
    )  # fmt: skip
    result = VlmNav._execute(node, handle)
    assert result.error_code == CODES.SHUTDOWN and "a newer goal took its place" in result.error_msg
    assert forgone == [handle] and aborted == [True]
