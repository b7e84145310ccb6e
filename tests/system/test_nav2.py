"""The whole chain moved by nav2, and the example of a behaviour tree, with a process in place of nav2's servers."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("nav2_msgs", reason="the sourced ROS has no nav2_msgs")
import rclpy
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from spec_vlm_nav.nodes import action_executor
from spec_vlm_nav.nodes.action_executor import ActionExecutor
from spec_vlm_nav.nodes.nav2_client import Nav2Client
from spec_vlm_nav.nodes.process import steady_timer
from spec_vlm_nav.runner import SOURCE
from tests.system.chain import CODES, FIND, simulated
from tests.system.conftest import LIMIT_S, Lines, until
from tests.system.spinning import Spinning
from tests.system.test_find import SERVER, started

EXAMPLE = SOURCE / "examples" / "go_find_return.py"
NAV2 = (sys.executable, "-m", "tests.system.nav2_servers")
PERIOD_S = 0.02


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
        end = goal.end().result
        assert end.error_code == CODES.ROBOT_FAULT and "nav2" in end.error_msg, end
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


class Puppet(Spinning):
    """A robot that obeys cmd_vel exactly."""

    def __init__(self, namespace: str) -> None:
        super().__init__(Node("puppet", namespace=namespace))
        self.x = self.y = self.yaw = 0.0
        self.farthest = 0.0
        self._twist = Twist()
        self._odometry = self.node.create_publisher(Odometry, "odom", 10)
        self.node.create_subscription(Twist, "cmd_vel", self._on_twist, 10)
        steady_timer(self.node, PERIOD_S, self._live)

    def _on_twist(self, twist: Twist) -> None:
        self._twist = twist

    def _live(self) -> None:
        vx, self.yaw = self._twist.linear.x * PERIOD_S, self.yaw + self._twist.angular.z * PERIOD_S
        self.x, self.y = self.x + vx * math.cos(self.yaw), self.y + vx * math.sin(self.yaw)
        self.farthest = max(self.farthest, self.x)
        message = Odometry()
        at, turn = message.pose.pose.position, message.pose.pose.orientation
        at.x, at.y, turn.z, turn.w = self.x, self.y, math.sin(self.yaw / 2), math.cos(self.yaw / 2)
        self._odometry.publish(message)


@pytest.mark.usefixtures("ros")
def test_the_example_goes_to_a_pose_finds_an_object_by_words_and_returns() -> None:
    pytest.importorskip("py_trees", reason="py_trees is not installed; run scripts/setup.sh")
    within = ("--ros-args", "-r", "__ns:=/errand")

    def errand(what: str) -> tuple[int, list[str]]:
        command = [sys.executable, str(EXAMPLE), "0.8", "0", "0", what, *within]
        got = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        print(got.stdout, got.stderr)
        return got.returncode, [line for line in got.stdout.splitlines() if "running" not in line]

    with closing(Puppet("/errand")) as puppet, started(*SERVER, *within) as find:
        with started(*NAV2, *within, "-p", "haste:=2.5") as nav2:
            until(lambda: nav2.has("odometry") and find.has("up"), "both servers are up, and nav2's knows where it is")
            assert errand("the red ball") == (0, ["go success", "find success", "return success"])
            assert puppet.farthest > 0.6 and math.hypot(puppet.x, puppet.y) < 0.2, "it was there, and is back"
            lost = "find failure: error 9912: I looked everywhere"
            assert errand("the grey ghost") == (1, ["go success", lost, "return success"])
        with started(*NAV2, *within, "-p", "obstacle:=true") as blocked:
            until(lambda: blocked.has("odometry"), "nav2 is up")
            assert errand("the red ball") == (1, ["go failure: error 1: "])
        assert len(find.goals()) == 2, "nothing is looked for where it could not go"
