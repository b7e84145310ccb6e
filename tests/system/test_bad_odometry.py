"""The real nodes, called as ROS would call them, on a clock of the test's own: bad odometry moves no robot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import rclpy
from geometry_msgs.msg import Twist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nav_msgs.msg import Odometry
from spec_vlm_nav_interfaces.msg import ActionStatus, NavigationAction
from unitree_api.msg import Request, Response

from spec_vlm_nav.nodes import action_executor, common, go2_bridge
from spec_vlm_nav.nodes.action_executor import ActionExecutor
from spec_vlm_nav.nodes.go2_bridge import Go2Bridge
from spec_vlm_nav.nodes.vlm_nav import VlmNav
from spec_vlm_nav.odometry import OdometryCheck
from spec_vlm_nav.robots.go2 import SPORT, SportApi
from spec_vlm_nav.safety import HARD_CAPS

TICK_S = 0.05
FORWARD, TURN_LEFT, SMALL = NavigationAction.FORWARD, NavigationAction.TURN_LEFT, NavigationAction.SMALL


@dataclass
class Sent:
    """A publisher that keeps what is published."""

    messages: list[Any] = field(default_factory=list)

    def publish(self, message: Any) -> None:
        self.messages.append(message)


class Clock:
    """Stands for the module `time` in the nodes."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module")
def clock() -> Iterator[Clock]:
    """A clock for all nodes of this file, and ROS."""
    made = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (action_executor, common, go2_bridge):
            patch.setattr(module, "time", made)
        rclpy.init()
        yield made
        rclpy.shutdown()


def odometry(clock: Clock, x: float = 0.0, yaw: float = 0.0, stamp: float | None = None) -> Odometry:
    """Return a message of this moment."""
    message = Odometry()
    stamp = clock.now if stamp is None else stamp
    message.header.stamp.sec, message.header.stamp.nanosec = int(stamp), int(stamp % 1.0 * 1e9)
    message.pose.pose.position.x = x
    message.pose.pose.orientation.z, message.pose.pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    return message


class Robot:
    """The executor, and a robot that obeys its newest Twist; odometry shows `shown` of the way."""

    def __init__(self, clock: Clock, shown: float = 1.0) -> None:
        self.clock, self.shown = clock, shown
        self.node = ActionExecutor()
        self.twists, self.statuses = Sent(), Sent()
        self.node._twists, self.node._statuses = self.twists, self.statuses  # type: ignore[assignment]
        self.x = self.yaw = 0.0
        self.steps = 0
        for _ in range(3):
            self.live()

    def act(self, kind: int) -> None:
        self.steps += 1
        self.node._on_action(NavigationAction(goal=1, step=self.steps, kind=kind, size=SMALL))

    def live(self, message: Odometry | None = None) -> None:
        """One tick: odometry arrives (the robot's own, or `message`), then the executor's timer runs."""
        self.clock.now += TICK_S
        if self.twists.messages:
            self.x += self.twist.linear.x * TICK_S
            self.yaw += self.twist.angular.z * TICK_S
        for name in ("vlm_nav", "go2_bridge"):
            self.node._watchdogs.feed(name, self.clock.now)
        self.node._on_odometry(message or odometry(self.clock, self.shown * self.x, self.shown * self.yaw))
        self.node._tick()

    @property
    def twist(self) -> Twist:
        return self.twists.messages[-1]

    @property
    def moves(self) -> bool:
        return bool(self.twist.linear.x or self.twist.angular.z)

    @property
    def outcome(self) -> int:
        return int(self.node._status.outcome)

    def close(self) -> None:
        self.node.destroy_node()


@pytest.fixture
def make(clock: Clock) -> Iterator[Callable[..., Robot]]:
    """Build robots that are closed in the end."""
    robots: list[Robot] = []

    def build(shown: float = 1.0) -> Robot:
        robots.append(Robot(clock, shown))
        return robots[-1]

    yield build
    for robot in robots:
        robot.close()


@pytest.mark.parametrize("kind", [FORWARD, TURN_LEFT])
def test_a_good_robot_does_what_it_is_asked(make: Callable[..., Robot], kind: int) -> None:
    robot = make()
    robot.act(kind)
    for _ in range(60):
        robot.live()
    assert robot.outcome == ActionStatus.DONE and not robot.moves
    assert (robot.x, robot.yaw) == pytest.approx(
        (0.25, 0.0) if kind == FORWARD else (0.0, math.radians(15)), abs=math.radians(4)
    )


FAULTS: dict[str, Callable[[Clock, float], Odometry]] = {
    "x is NaN": lambda clock, x: odometry(clock, math.nan),
    "x is infinite": lambda clock, x: odometry(clock, math.inf),
    "yaw is NaN": lambda clock, x: odometry(clock, x, math.nan),
    "jump": lambda clock, x: odometry(clock, x + 3.0),
    "half turn": lambda clock, x: odometry(clock, x, 3.0),
    "stamp goes back": lambda clock, x: odometry(clock, x, stamp=clock.now - 5.0),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [FORWARD, TURN_LEFT])
def test_one_bad_sample_ends_the_action_at_once(make: Callable[..., Robot], kind: int, fault: str) -> None:
    robot = make()
    robot.act(kind)
    for _ in range(4):
        robot.live()
    assert robot.moves and robot.outcome == ActionStatus.RUNNING
    robot.clock.now += TICK_S
    robot.node._on_odometry(FAULTS[fault](robot.clock, robot.x))
    assert not robot.moves, "the robot stands before the next tick"
    assert robot.outcome == ActionStatus.NO_ODOMETRY
    assert robot.node._status.message.startswith("odometry") and "robot stands" in robot.node._status.message
    robot.x = 0.0 if not math.isfinite(robot.x) else robot.x
    robot.act(kind)
    assert robot.outcome == ActionStatus.NO_ODOMETRY, "no new action while the source is not sound"
    for _ in range(40):
        robot.live()
        assert not robot.moves
    robot.act(kind)
    robot.live()
    assert robot.moves and robot.outcome == ActionStatus.RUNNING, "a source that is sound again is moved on"


def test_a_frozen_source_ends_the_action(make: Callable[..., Robot]) -> None:
    robot = make()
    robot.act(FORWARD)
    robot.live()
    frozen = odometry(robot.clock, robot.x)
    before = robot.x
    for _ in range(4):
        robot.live(frozen)
    assert robot.outcome == ActionStatus.NO_ODOMETRY and "frozen" in robot.node._status.message
    assert robot.x - before < 0.1


def test_odometry_that_shows_a_tenth_does_not_send_the_robot_on(make: Callable[..., Robot]) -> None:
    robot = make(shown=0.1)
    robot.act(FORWARD)
    for _ in range(100):
        robot.live()
    assert robot.outcome == ActionStatus.BLOCKED and "of" in robot.node._status.message
    assert robot.x <= 0.55, "an ideal robot at 0.4 m/s; it walked 1.3 m"


def test_odometry_that_shows_far_too_much_is_named(make: Callable[..., Robot]) -> None:
    robot = make(shown=6.0)
    robot.steps += 1
    robot.node._on_action(NavigationAction(goal=1, step=robot.steps, kind=FORWARD, size=NavigationAction.LARGE))
    for _ in range(100):
        robot.live()
    assert robot.outcome == ActionStatus.NO_ODOMETRY and "it is wrong" in robot.node._status.message


ANY = st.one_of(st.floats(-0.5, 0.5), st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308]))
BAD = st.sampled_from(sorted(FAULTS))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([FORWARD, TURN_LEFT]),
    st.integers(0, 8),
    BAD,
    st.lists(st.tuples(ANY, ANY, st.one_of(st.none(), st.floats(0.0, 200.0))), max_size=12),
)
def test_whatever_arrives_the_command_is_within_limits_and_zero_from_the_first_bad_sample_on(
    clock: Clock, kind: int, good: int, fault: str, rest: list[tuple[float, float, float | None]]
) -> None:
    robot = Robot(clock)
    try:
        robot.act(kind)
        for _ in range(good):
            robot.live()
        first_bad = len(robot.twists.messages)
        robot.live(FAULTS[fault](clock, robot.x))
        for x, yaw, stamp in rest:
            message = odometry(clock, x, 0.0, stamp)
            message.pose.pose.orientation.z = yaw
            robot.live(message)
        for index, twist in enumerate(robot.twists.messages):
            speeds = (twist.linear.x, twist.linear.y, twist.angular.z)
            assert all(abs(speed) <= cap for speed, cap in zip(speeds, HARD_CAPS, strict=True))
            assert index < first_bad or not any(speeds)
    finally:
        robot.close()


def test_odometry_that_is_wrong_confirms_no_stop(clock: Clock) -> None:
    bridge = Go2Bridge()
    requests = Sent()
    bridge._senders = dict.fromkeys(bridge._senders, requests)

    def second(vx: float) -> list[int]:
        """Live a second without cmd_vel; the robot answers everything. Return what was requested."""
        before = len(requests.messages)
        for _ in range(20):
            clock.now += TICK_S
            message = odometry(clock)
            message.twist.twist.linear.x = vx
            bridge._on_odometry(message)
            bridge._tick()
            for request in requests.messages[before:]:
                bridge._on_answer(SPORT, answer(request))
        return [request.header.identity.api_id for request in requests.messages[before:]]

    try:
        bridge.activate()
        standing_up = [api for _ in range(10) for api in second(0.0)]
        expected = [SportApi.STAND_UP, SportApi.BALANCE_STAND, SportApi.STOP_MOVE]
        assert standing_up == expected, "a robot that stands and says so gets one StopMove"
        for wrong in (math.nan, 0.2):
            stops = second(wrong)
            assert len(stops) > 5 and set(stops) == {SportApi.STOP_MOVE}
        second(0.0)
        assert second(0.0) == []
    finally:
        bridge.destroy_node()


def answer(request: Request) -> Response:
    response = Response()
    response.header.identity = request.header.identity
    return response


def test_the_distance_of_a_goal_counts_no_bad_odometry(clock: Clock) -> None:
    node: Any = SimpleNamespace(travelled=0.0, _odometry=OdometryCheck(), _place=None)
    places = [0.0, 0.01, 0.02, math.nan, 0.03, 5.0, *[5.0] * 40, 5.01, 5.02]
    for x in places:
        clock.now += 0.02
        VlmNav._on_odometry(node, odometry(clock, x))
    assert node.travelled == pytest.approx(0.04, abs=1e-6)
