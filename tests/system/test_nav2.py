"""The whole chain moved by nav2, with a process in place of nav2's servers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nav2_msgs", reason="the sourced ROS has no nav2_msgs")
import rclpy
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from spec_vlm_nav.nodes import action_executor
from spec_vlm_nav.nodes.action_executor import ActionExecutor
from spec_vlm_nav.nodes.nav2_client import Nav2Client
from tests.system.chain import CODES, FIND, finish, simulated
from tests.system.conftest import Lines, until
from tests.system.test_find import started

NAV2 = (sys.executable, "-m", "tests.system.nav2_servers")


def test_nav2_moves_the_robot_an_e_stop_stops_it_and_the_goal_ends_with_nav2s_words(
    turning_model: Path, lines: Lines
) -> None:
    with started(*NAV2) as nav2, simulated(turning_model, lines, motion_service="nav2") as robot:
        node, goal = robot.observer.node, robot.send(FIND, 1200.0)
        until(lambda: nav2.lines.count("spin 0") >= 2, "the robot turns by nav2")
        assert not nav2.has("drive_on_heading")
        e_stop = node.create_publisher(Bool, "e_stop", 10)
        until(lambda: e_stop.get_subscription_count() > 0, "somebody listens")
        e_stop.publish(Bool(data=True))
        until(lambda: robot.record.said("e-stop") and robot.stands, "an e-stop holds it")
        e_stop.publish(Bool(data=False))
        reset, turned = node.create_client(Trigger, "go2_bridge/reset"), robot.turns()
        until(reset.service_is_ready, "the reset is there")
        reset.call_async(Trigger.Request())
        until(lambda: robot.turns() > turned, "it goes on")
        nav2.process.kill()
        end = finish(robot, goal)
        assert end.error_code == CODES.ROBOT_FAULT and "nav2" in end.message, end
        until(lambda: robot.stands, "the robot stands")


@pytest.fixture
def nav2_executor() -> Iterator[ActionExecutor]:
    """Return the node with nav2, in a namespace with nobody else."""
    rclpy.init(args=["--ros-args", "-p", "motion_service:=nav2", "-r", "__ns:=/alone"])
    made = ActionExecutor()
    yield made
    made.destroy_node()
    rclpy.shutdown()


def test_what_is_missing_is_refused_in_a_sentence_before_anything_moves(
    nav2_executor: ActionExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("NAV2_S", "TAKEN_S"):
        monkeypatch.setattr(action_executor, limit, 0.0)
    with pytest.raises(RuntimeError, match="nav2's action servers drive_on_heading, spin are not there within"):
        nav2_executor.configure()
    assert "it waits for nav2's action servers" in nav2_executor.problem
    with pytest.raises(
        RuntimeError, match="nobody takes /alone/cmd_vel_gated: go2_bridge needs motion_service nav2, too"
    ):
        nav2_executor.activate()
    lines = {status.name: status for status in nav2_executor.health()}
    assert lines["nav2"].message.startswith("no action server drive_on_heading, spin")
    monkeypatch.setitem(sys.modules, "nav2_msgs.action", None)
    monkeypatch.setenv("ROS_DISTRO", "humble")
    with pytest.raises(ValueError, match="sudo apt install ros-humble-nav2-msgs"):
        Nav2Client(nav2_executor, threading.Lock(), 0.2)
