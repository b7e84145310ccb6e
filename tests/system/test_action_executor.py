"""action_executor as a process: silence, ROS time that stands still, and deactivation end in a zero cmd_vel."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import rclpy
from geometry_msgs.msg import Twist, TwistStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from nav_msgs.msg import Odometry
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from spec_vlm_nav_interfaces.msg import ActionStatus, NavigationAction
from std_msgs.msg import Header

from spec_vlm_nav.nodes.common import COMMAND_QOS, steady_timer
from tests.system.conftest import until

NAMES = ("vlm_nav", "go2_bridge")
PERIOD_S = 0.02


class Surroundings:
    """Everybody the executor depends on: odometry that obeys cmd_vel, and heartbeats; each can fall silent."""

    def __init__(self, stamped: bool = False) -> None:
        self.node = Node("surroundings")
        self.silent: set[str] = set()
        self.last_sent: dict[str, float] = {}
        self.twists: list[tuple[float, float]] = []
        """Time and forward speed of each command."""
        self.status: ActionStatus | None = None
        self.roll_m = 0.0
        """What the robot still rolls on by itself."""
        self._x = self._speed = 0.0
        self._tick = 0
        self._odometry = self.node.create_publisher(Odometry, "odom", 10)
        self._beats = {name: self.node.create_publisher(Header, f"heartbeat/{name}", COMMAND_QOS) for name in NAMES}
        self.actions = self.node.create_publisher(NavigationAction, "navigation_action", 10)
        kind = TwistStamped if stamped else Twist
        self.node.create_subscription(kind, "cmd_vel", self._on_twist, COMMAND_QOS)
        self.node.create_subscription(ActionStatus, "action_status", self._on_status, 10)
        steady_timer(self.node, PERIOD_S, self._live)
        self._end = threading.Event()
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()

    def go(self, step: int) -> None:
        """Ask for a long way ahead until the robot moves."""
        message = NavigationAction(goal=1, step=step, kind=NavigationAction.FORWARD, size=NavigationAction.LARGE)

        def moves() -> bool:
            self.actions.publish(message)
            return self.moves

        until(moves, "the robot moves")

    @property
    def moves(self) -> bool:
        return bool(self.twists) and self.twists[-1][1] > 0.0

    def reports(self, outcome: int, words: str) -> bool:
        return self.status is not None and self.status.outcome == outcome and words in self.status.message

    def covers(self, metres: float) -> bool:
        return self.status is not None and self.status.progress >= metres

    def call(self, kind: Any, service: str, request: Any) -> Any:
        client = self.node.create_client(kind, f"action_executor/{service}")
        assert client.wait_for_service(30.0)
        answer = client.call_async(request)
        until(answer.done, f"answer of {service}")
        return answer.result()

    def _spin(self) -> None:
        while not self._end.is_set():
            self._executor.spin_once(timeout_sec=0.05)

    def _live(self) -> None:
        now = time.monotonic()
        self._tick += 1
        self._x += self._speed * PERIOD_S + (rolled := min(self.roll_m, 0.01))
        self.roll_m -= rolled
        if "odom" not in self.silent:
            message = Odometry()
            message.header.stamp.sec, message.header.stamp.nanosec = int(now), int(now % 1.0 * 1e9)
            message.pose.pose.position.x, message.pose.pose.orientation.w = self._x, 1.0
            self._odometry.publish(message)
            self.last_sent["odom"] = now
        for name, beats in self._beats.items():
            if name not in self.silent and self._tick % 2 == 0:
                beats.publish(Header())
                self.last_sent[name] = now

    def _on_twist(self, message: Any) -> None:
        twist = message.twist if isinstance(message, TwistStamped) else message
        self._speed = twist.linear.x
        self.twists.append((time.monotonic(), twist.linear.x))

    def _on_status(self, message: ActionStatus) -> None:
        self.status = message


@contextmanager
def executor(*options: str, stamped: bool = False) -> Iterator[Surroundings]:
    """Start the node, and what it needs around it. At this speed an action takes several seconds."""
    arguments = ["-p", "autostart:=true", "-p", "forward_speed:=0.1", *options]
    command = [sys.executable, "-m", "spec_vlm_nav.nodes.action_executor", "--ros-args", *arguments]
    rclpy.init()
    process = subprocess.Popen(command)
    surroundings = Surroundings(stamped)
    try:
        yield surroundings
    finally:
        process.terminate()
        status = process.wait(30.0)
        surroundings.close()
        rclpy.shutdown()
    assert status == 0


def stops_for(surroundings: Surroundings, name: str) -> float:
    """Silence `name` in motion; return the seconds from its last message to the first zero cmd_vel."""
    surroundings.silent.add(name)
    before = len(surroundings.twists)
    until(lambda: any(speed == 0.0 for _, speed in surroundings.twists[before:]), f"a stop without {name}", 10.0)
    return next(at for at, speed in surroundings.twists[before:] if speed == 0.0) - surroundings.last_sent[name]


def test_ros_time_that_stands_still_stops_neither_motion_nor_watchdogs() -> None:
    with executor() as around:
        around.go(1)
        value = ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=True)
        request = SetParameters.Request(parameters=[Parameter(name="use_sim_time", value=value)])
        assert around.call(SetParameters, "set_parameters", request).results[0].successful
        around.go(2)
        before = len(around.twists)
        until(lambda: len(around.twists) > before + 10 or not around.moves, "commands without /clock", 10.0)
        assert around.moves
        stops_for(around, "odom")
        until(lambda: around.reports(ActionStatus.NO_ODOMETRY, "odometry went silent"), "status")


def test_silence_of_anybody_it_needs_stops_the_robot_which_goes_on_or_says_why() -> None:
    with executor() as around:
        around.go(1)
        for step, name in enumerate(NAMES):
            around.go(10 + step)
            stops_for(around, name)
            until(partial(around.reports, ActionStatus.RUNNING, name), "the status names it")
            covered = around.status.progress if around.status is not None else 0.0
            around.roll_m = 0.1
            until(partial(around.covers, covered + 0.08), "what it rolls on is measured while it is held", 5.0)
            around.silent.clear()
            until(lambda: around.moves, "the robot goes on", 5.0)


def test_a_deactivated_node_has_sent_zeros_and_moves_only_on_a_newer_action() -> None:
    with executor("-p", "stamped_cmd_vel:=true", stamped=True) as around:
        around.go(1)

        def change(transition: int) -> bool:
            request = ChangeState.Request(transition=Transition(id=transition))
            return bool(around.call(ChangeState, "change_state", request).success)

        assert change(Transition.TRANSITION_DEACTIVATE)
        until(lambda: [speed for _, speed in around.twists[-3:]] == [0.0] * 3, "the stop is repeated")
        until(lambda: around.reports(ActionStatus.IDLE, "deactivated"), "status")
        assert around.status is not None and around.status.progress > 0.0
        count = len(around.twists)
        around.actions.publish(NavigationAction(goal=1, step=2, kind=NavigationAction.FORWARD, size=1))
        assert change(Transition.TRANSITION_ACTIVATE)
        until(lambda: len(around.twists) > count + 5, "heartbeats")
        assert not around.moves, "what came while it was not active is forgotten"
        around.go(3)
