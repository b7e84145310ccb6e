"""action_executor as a process: silence and deactivation end in a zero cmd_vel, ROS time that stands still does not."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import rclpy
from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetState
from nav_msgs.msg import Odometry
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.node import Node
from spec_vlm_nav_interfaces.msg import ActionStatus, NavigationAction
from std_msgs.msg import Header

from spec_vlm_nav.nodes import action_executor, conversions, process
from spec_vlm_nav.nodes.action_executor import ActionExecutor
from spec_vlm_nav.nodes.process import steady_timer
from spec_vlm_nav.nodes.topics import COMMAND_QOS
from tests.system.conftest import LIMIT_S, until
from tests.system.spinning import Spinning
from tests.system.test_find import started

NAMES = ("vlm_nav", "go2_bridge")
PERIOD_S = 0.02
NOW_NS = 1_800_000_000_000_000_000


class Surroundings(Spinning):
    """Everybody the executor depends on: odometry that obeys cmd_vel, and heartbeats; each can fall silent."""

    def __init__(self) -> None:
        super().__init__(Node("surroundings"))
        self.silent: set[str] = set()
        self.twists: list[tuple[float, float]] = []
        """Time and forward speed of each command."""
        self.status: ActionStatus | None = None
        self.rolls = False
        """Whether the robot moves by itself."""
        self.step = 1
        self._x = self._speed = 0.0
        self._tick = 0
        self._odometry = self.node.create_publisher(Odometry, "odom", 10)
        self._beats = {name: self.node.create_publisher(Header, f"heartbeat/{name}", COMMAND_QOS) for name in NAMES}
        self.actions = self.node.create_publisher(NavigationAction, "navigation_action", 10)
        self.node.create_subscription(TwistStamped, "cmd_vel", self._on_twist, COMMAND_QOS)
        self.node.create_subscription(ActionStatus, "action_status", self._on_status, 10)
        steady_timer(self.node, PERIOD_S, self._live)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and ask for a way ahead again whenever an action ended, as it does when this machine is too slow."""

        def asked() -> bool:
            status = self.status
            self.step += status is not None and status.step == self.step and status.outcome != ActionStatus.RUNNING
            self.ask(self.step)
            return condition()

        until(asked, what)

    def ask(self, step: int) -> None:
        kind, size = NavigationAction.FORWARD, NavigationAction.LARGE
        self.actions.publish(NavigationAction(goal=1, step=step, kind=kind, size=size))

    def moves(self) -> bool:
        return bool(self.twists) and self.twists[-1][1] > 0.0

    def reports(self, outcome: int, words: str, progress: float = -1.0) -> bool:
        got = self.status
        return got is not None and got.outcome == outcome and words in got.message and got.progress > progress

    def rolled(self, before: ActionStatus, distance: float) -> bool:
        """Whether that was measured since `before`, of its action or, where that has ended, of the next one."""
        status = self.status
        covered = before.progress if status is not None and status.step == before.step else 0.0
        return status is not None and status.progress > covered + distance

    def _live(self) -> None:
        now = time.monotonic()
        self._tick += 1
        self._x += self._speed * PERIOD_S + (0.005 if self.rolls else 0.0)
        if "odom" not in self.silent:
            message = Odometry()
            message.header.stamp.sec, message.header.stamp.nanosec = int(now), int(now % 1.0 * 1e9)
            message.pose.pose.position.x, message.pose.pose.orientation.w = self._x, 1.0
            self._odometry.publish(message)
        for name, beats in self._beats.items():
            if name not in self.silent and self._tick % 2 == 0:
                beats.publish(Header())

    def _on_twist(self, message: TwistStamped) -> None:
        self._speed = message.twist.linear.x
        self.twists.append((time.monotonic(), self._speed))

    def _on_status(self, message: ActionStatus) -> None:
        self.status = message


@contextmanager
def executor(*options: str) -> Iterator[Surroundings]:
    """Start the node, and what it needs around it. At this speed an action takes several seconds."""
    arguments = ["-p", "autostart:=true", "-p", "forward_speed:=0.1", *options]
    command = [sys.executable, "-m", "spec_vlm_nav.nodes.action_executor", "--ros-args", *arguments]
    with closing(Surroundings()) as surroundings, started(*command) as node:
        yield surroundings
        node.process.terminate()
        assert node.end() == 0


@pytest.mark.usefixtures("ros")
def test_silence_and_deactivation_stop_the_robot_and_ros_time_that_stands_still_does_not() -> None:
    with executor("-p", "stamped_cmd_vel:=true") as around:
        for name in NAMES:
            around.until(around.moves, "the robot moves")
            around.silent.add(name)
            around.until(partial(around.reports, ActionStatus.RUNNING, f"{name} silent"), "the status names it")
            until(lambda: not around.moves(), "a stop")
            assert around.status is not None
            before, around.rolls = around.status, True
            around.until(partial(around.rolled, before, 0.1), "progress while it is held")
            assert not around.moves()
            around.rolls = False
            around.silent.clear()
            around.until(around.moves, "the robot goes on")

        value = ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=True)
        request = SetParameters.Request(parameters=[Parameter(name="use_sim_time", value=value)])
        answer = around.service(SetParameters, "action_executor/set_parameters", request)
        assert answer.results[0].successful
        count = len(around.twists)
        around.until(lambda: len(around.twists) > count + 20 and around.moves(), "commands without /clock")
        around.silent.add("odom")
        until(lambda: not around.moves(), "a stop without odometry")
        around.until(lambda: around.reports(ActionStatus.NO_ODOMETRY, "odometry"), "status")
        around.silent.clear()

        around.until(lambda: around.reports(ActionStatus.RUNNING, "", 0.02), "the robot moves")
        assert around.change("action_executor", Transition.TRANSITION_DEACTIVATE)
        until(lambda: not around.moves(), "a last zero")
        until(lambda: around.reports(ActionStatus.IDLE, "deactivated", 0.02), "status")
        count = len(around.twists)
        around.ask(around.step + 1)
        # Its answer shows that it has had the message before, while it was not active.
        around.service(GetState, "action_executor/get_state")
        assert around.change("action_executor", Transition.TRANSITION_ACTIVATE)
        until(lambda: len(around.twists) > count + 5, "heartbeats")
        assert not around.moves(), "what came while it was not active is forgotten"
        around.step += 2
        around.until(around.moves, "the robot moves")


@pytest.fixture
def node() -> Iterator[ActionExecutor]:
    """Return the node in this process, without an executor of rclpy's."""
    rclpy.init(args=["--ros-args", "-p", "stamped_cmd_vel:=true"])
    made = ActionExecutor()
    yield made
    made.destroy_node()
    rclpy.shutdown()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Have the node's time stand still."""
    made = SimpleNamespace(time_ns=lambda: NOW_NS, monotonic=lambda: 100.0)
    for module in (action_executor, conversions):
        monkeypatch.setattr(module, "time", made)
    return made


def sound_odometry() -> Odometry:
    message = Odometry()
    message.pose.pose.orientation.w = 1.0
    return message


@pytest.mark.parametrize(("received", "waited"), [(4900.0, 100.0), (5000.5, 0.0), (1.0, 0.0), (None, 0.0)])
def test_silence_counts_from_the_arrival_of_a_message_not_from_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch, received: float | None, waited: float
) -> None:
    """Times in milliseconds; a time that no message can have waited is not believed."""
    clock = SimpleNamespace(time_ns=lambda: 5_000_000_000, monotonic=lambda: 50.0)
    monkeypatch.setattr(conversions, "time", clock)
    stamp = None if received is None else int(received * 1e6)
    assert conversions.arrival({"received_timestamp": stamp}) == pytest.approx(50.0 - waited * 1e-3)


FORWARD = NavigationAction(goal=7, step=3, kind=NavigationAction.FORWARD, size=NavigationAction.MEDIUM)
NOW = {"received_timestamp": NOW_NS}


def test_the_stop_goes_out_before_its_reason_is_logged(
    node: ActionExecutor, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full machine may hold up the log."""
    done: list[str] = []
    node.active = True
    for name in NAMES:
        node._on_heartbeat(name, 100.0)
    node._on_odometry(sound_odometry(), NOW)
    node._on_action(FORWARD)
    logger = SimpleNamespace(**{each: lambda *_, **__: done.append("log") for each in ("info", "warning", "error")})
    with monkeypatch.context() as patch:
        patch.setattr(node, "get_logger", lambda: logger)
        patch.setattr(node, "_twists", SimpleNamespace(publish=lambda sent: done.append(f"{sent.twist.linear.x:g}")))
        patch.setattr(clock, "monotonic", lambda: 100.21)
        node._tick()
    assert done[0] == "0" and "log" in done


def test_ticks_that_fail_end_the_process(node: ActionExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_ended", ended := threading.Event())
    monkeypatch.setattr(process, "_failed", failed := threading.Event())
    monkeypatch.setattr(node, "_tick", lambda: 1 / 0)
    node.configure()
    assert ended.wait(LIMIT_S) and failed.is_set()
    node.cleanup()


def test_at_its_end_it_confirms_that_it_stands_until_vlm_nav_is_gone(
    node: ActionExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends both at once: without this the goal's client is told that the stop was not confirmed."""
    monkeypatch.setattr(action_executor, "LINGER_S", 4 * LIMIT_S)
    with closing(Surroundings()) as around:
        node.configure()
        node.active = True
        until(lambda: node.count_publishers("navigation_action") > 0, "it knows vlm_nav")
        ending = threading.Thread(target=node.end, daemon=True)
        ending.start()
        until(lambda: not node.active, "it stops acting")

        def confirmed() -> bool:
            around.actions.publish(NavigationAction(goal=1, step=7, kind=NavigationAction.HOLD))
            return around.reports(ActionStatus.DONE, "standing")

        until(confirmed, "the HOLD is confirmed")
        around.ask(8)
        assert ending.is_alive() and around.status is not None and around.status.step == 7
        around.node.destroy_publisher(around.actions)
        ending.join(LIMIT_S)
        assert not ending.is_alive()
