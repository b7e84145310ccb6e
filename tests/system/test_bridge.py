"""Simulated robot and bridge as processes: whatever happens, the robot ends up standing, and goes on when it may."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from geometry_msgs.msg import Twist, TwistStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from std_msgs.msg import Bool, Header
from std_srvs.srv import Trigger
from unitree_api.msg import Request
from unitree_go.msg import WirelessController

from spec_vlm_nav.nodes.diagnostics import on_lines
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.process_graph import Graph, NodeSpec
from spec_vlm_nav.robots.go2 import AVOID, SPORT, AvoidApi, SportApi
from spec_vlm_nav.runner import Line, Runner
from tests.system.conftest import Lines, until
from vlm_nav_evaluation.nodes.observer import Observer

STANDS = 0.01
QUIET_S = 0.3
"""A heartbeat that is silent for so long has ended."""


class Requests:
    """Every request to the sport service and to obstacles_avoid, in order."""

    def __init__(self, observer: Observer) -> None:
        self.seen: list[tuple[str, int, str]] = []
        for name, service in (("sport", SPORT), ("avoid", AVOID)):
            observer.node.create_subscription(
                Request, service.requests.name.lstrip("/"), lambda message, name=name: self._take(name, message), 50
            )

    def _take(self, service: str, message: Request) -> None:
        self.seen.append((service, message.header.identity.api_id, message.parameter))

    def apis(self, since: int = 0, service: str = "sport") -> list[int]:
        return [api for name, api, _ in self.seen[since:] if name == service]

    def rest(self) -> bool:
        """Whether none came for a moment, in which a bridge that drives makes several."""
        before = len(self.seen)
        time.sleep(0.5)
        return len(self.seen) == before

    @property
    def last_api(self) -> int:
        return self.apis()[-1] if self.apis() else 0

    @property
    def last_move(self) -> dict[str, float]:
        move = ("sport", SportApi.MOVE)
        return dict(json.loads(next(p for name, api, p in reversed(self.seen) if (name, api) == move)))


class Driver:
    """Publishes one Twist at 20 Hz until it is changed, as the executor does."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.twist: Twist | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._drive, daemon=True)
        self._thread.start()

    def send(self, vx: float = 0.0, wz: float = 0.0) -> None:
        twist = Twist()
        twist.linear.x, twist.angular.z = vx, wz
        self.twist = twist

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _drive(self) -> None:
        while not self._end.wait(0.05):
            if self.twist is not None:
                self._observer.cmd_vel.publish(self.twist)


@dataclass
class Dog:
    """A simulated robot, the bridge that made it stand, and everything that a test does to both."""

    observer: Observer
    requests: Requests
    driver: Driver
    runner: Runner
    beaten_at: float = 0.0

    def __post_init__(self) -> None:
        self.node = self.observer.node
        self.node.create_subscription(Header, "heartbeat/go2_bridge", self._beat, 10)
        self._publishers: dict[str, Any] = {}

    def _beat(self, _: Header) -> None:
        self.beaten_at = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the bridge's heartbeat shows that the robot stands."""
        return time.monotonic() - self.beaten_at < QUIET_S

    @property
    def balanced(self) -> bool:
        return bool(self.observer.truth["posture"] == "standing, balanced")

    def publish(self, topic: str, message: Any) -> None:
        """Publish as another program would, once somebody listens."""
        if topic not in self._publishers:
            publisher = self._publishers[topic] = self.node.create_publisher(type(message), topic, 10)
            until(lambda: publisher.get_subscription_count() > 0, f"a subscriber of {topic}")
        self._publishers[topic].publish(message)

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service and return its answer."""
        client = self.node.create_client(kind, name)
        until(client.service_is_ready, f"the service {name}")
        answer = client.call_async(request)
        until(answer.done, f"an answer of {name}")
        return answer.result()

    def change(self, transition: int) -> bool:
        """Ask the bridge for a transition and return whether it was made."""
        request = ChangeState.Request(transition=Transition(id=transition))
        return bool(self.call(ChangeState, "go2_bridge/change_state", request).success)

    def reset(self) -> Any:
        return self.call(Trigger, "go2_bridge/reset", Trigger.Request())

    def walk(self) -> None:
        """Walk in a small circle: straight on, a slow machine's robot comes to a wall before the tests end."""
        self.driver.send(vx=0.2, wz=-0.8)
        until(lambda: self.observer.speed > 0.3, "robot moves")

    def stands(self) -> None:
        until(lambda: self.observer.speed < STANDS, "robot stands")

    def recover(self) -> None:
        """Start a bridge anew that a test has ended or left latched, and wait until it makes the robot stand."""
        self.driver.twist = None
        time.sleep(QUIET_S)  # the last heartbeat of a bridge that has just ended would count as that of one that drives
        if not (self.ready and self.runner.alive("go2_bridge")):
            self.runner.stop("go2_bridge")
            self.runner.start("go2_bridge")
        until(lambda: self.ready and self.balanced and self.observer.speed < STANDS, "the robot stands, driven")
        self.requests.seen.clear()


@contextmanager
def started(line: Line, topics: tuple[tuple[str, str], ...] = (), **parameters: bool | float | str) -> Iterator[Dog]:
    """Start a simulated robot and the bridge, with parameters of the bridge's, and wait until it stands."""
    simulated = NodeSpec("sim_go2", "sim.yaml", (("seed", 3), ("scan_hz", 10.0)))
    bridge = NodeSpec("go2_bridge", "sim.yaml", (("autostart", True), *parameters.items()), topics, respawns=0)
    graph = Graph((), (simulated, bridge, NodeSpec("stop_watchdog", "sim.yaml")))
    with Runner(graph, {}, line) as runner, Observer() as observer:
        runner.start("sim_go2", "go2_bridge")
        dog = Dog(observer, Requests(observer), Driver(observer), runner)
        try:
            until(lambda: dog.ready and "ground_truth" in observer.last, "bridge ready")
            dog.recover()
            yield dog
        finally:
            dog.driver.close()


GIVE_BACK = ("avoid", AvoidApi.USE_REMOTE_COMMAND_FROM_API)


@pytest.fixture
def avoiding(lines: Lines) -> Iterator[Dog]:
    """A robot that keeps off what it sees. It comes before the one that is shared: there can be one at a time."""
    topics = (("utlidar/cloud", "scan"), ("cmd_vel", "cmd_vel_stamped"))
    chosen = {"motion_service": "obstacles_avoid", "guard": "scan", "guard_points": 1, "stamped_cmd_vel": True}
    with started(lines, topics, **chosen) as dog:
        yield dog


def test_stamped_commands_drive_it_by_avoidance_up_to_what_the_guard_sees_while_they_are_young(avoiding: Dog) -> None:
    robot = avoiding

    def send(age: float, vx: float, wz: float = 0.0) -> None:
        message = TwistStamped()
        stamp = robot.node.get_clock().now().nanoseconds - int(age * 1e9)
        message.header.stamp.sec, message.header.stamp.nanosec = stamp // 10**9, stamp % 10**9
        message.twist.linear.x, message.twist.angular.z = vx, wz
        robot.publish("cmd_vel_stamped", message)

    def last_move() -> dict[str, float]:
        move = ("avoid", AvoidApi.MOVE)
        return dict(json.loads(next(p for name, api, p in reversed(robot.requests.seen) if (name, api) == move)))

    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        send(0.5, 0.4)
        time.sleep(0.02)
        assert robot.observer.speed < STANDS, "it is too old to move on"
    until(lambda: (send(0.0, 0.5), robot.observer.speed > 0.3)[1], "robot moves")
    assert SportApi.MOVE not in robot.requests.apis()
    until(lambda: (send(0.0, 0.5), last_move()["x"] == 0.0 and robot.observer.speed < STANDS)[1], "the guard stops it")
    until(lambda: (send(0.0, 0.5, 0.5), robot.observer.speed > 0.3)[1], "robot turns away")
    until(lambda: (send(9.0, 0.0), robot.observer.speed < STANDS)[1], "an old stop is a stop")
    before = len(robot.requests.seen)
    assert robot.change(Transition.TRANSITION_DEACTIVATE)

    def given_back() -> bool:
        # Requests of two services arrive in no order that holds between them.
        calls = [each for each in robot.requests.seen[before:] if each[:2] == GIVE_BACK]
        return bool(calls) and json.loads(calls[-1][2]) == {"is_remote_commands_from_api": False}

    until(given_back, "command given back")
    robot.stands()


@pytest.fixture(scope="module")
def shared(all_lines: Lines) -> Iterator[Dog]:
    """The robot that the tests below share."""
    with started(all_lines) as dog:
        yield dog


@pytest.fixture
def robot(shared: Dog, lines: Lines) -> Dog:
    """A robot that stands, whatever the test before has done to it."""
    shared.recover()
    lines.clear()  # what that prints is not what a test waits for
    return shared


def test_the_robot_is_driven_clamped_and_stopped_when_cmd_vel_goes_silent(robot: Dog) -> None:
    said = list[str]()
    takers = {"go2_bridge: battery": lambda line: said.append(line.message)}
    on_lines(partial(subscribe, robot.node), robot.node, takers)
    robot.driver.send(vx=9.0, wz=-9.0)
    until(lambda: robot.observer.speed > 0.4 and SportApi.MOVE in robot.requests.apis(), "robot moves")
    assert robot.requests.last_move["x"] <= 0.5 and robot.requests.last_move["z"] >= -0.8
    robot.driver.twist = None
    # The last Move would end by itself after its hold; what counts is that the bridge sent StopMove.
    until(lambda: robot.requests.last_api == SportApi.STOP_MOVE, "StopMove")
    robot.stands()
    robot.driver.send(vx=0.2)
    until(lambda: robot.observer.speed > 0.1, "robot moves again after the silence")
    robot.driver.twist = None
    until(lambda: robot.requests.last_api == SportApi.STOP_MOVE, "StopMove")
    # The test's own program sent nothing else.
    assert set(robot.requests.apis()) <= {int(entry) for entry in SportApi}
    assert robot.requests.apis(service="avoid") == []
    until(lambda: any(line.endswith(" %") for line in said), "the line about the battery")


def test_a_person_with_the_remote_control_takes_the_robot_and_gives_it_back(robot: Dog) -> None:
    robot.publish("wirelesscontroller", WirelessController())
    robot.walk()
    robot.publish("wirelesscontroller", WirelessController(ly=0.8))
    until(lambda: not robot.ready, "the heartbeat ends")
    # A stop may have come for a silence before.
    until(lambda: robot.requests.rest() and robot.requests.last_api == SportApi.STOP_MOVE, "the person has the robot")
    sent = len(robot.requests.seen)
    timer = robot.node.create_timer(0.05, lambda: robot.publish("wirelesscontroller", WirelessController(keys=1)))
    until(lambda: "remote control is in use" in robot.reset().message, "a refusal while keys are pressed")
    robot.node.destroy_timer(timer)
    assert len(robot.requests.seen) == sent, "the person has it alone"
    until(lambda: robot.reset().success, "the remote control is put down")
    until(lambda: robot.ready, "the robot is driven again")
    assert SportApi.STAND_UP not in robot.requests.apis(sent), "it stands: it is not made to stand up"


def test_an_e_stop_latches(robot: Dog) -> None:
    robot.publish("e_stop", Bool(data=False))
    robot.walk()
    robot.publish("e_stop", Bool(data=True))
    until(lambda: robot.requests.last_api == SportApi.STOP_MOVE and not robot.ready, "StopMove")
    robot.stands()
    assert "still pressed" in robot.reset().message
    robot.publish("e_stop", Bool(data=False))
    until(lambda: robot.reset().success, "the e-stop is let go")
    until(lambda: robot.observer.speed > 0.3, "robot moves again")


def test_its_transitions_stop_the_robot_and_let_it_stand(robot: Dog, lines: Lines) -> None:
    robot.walk()
    assert robot.change(Transition.TRANSITION_DEACTIVATE)
    until(lambda: robot.requests.last_api == SportApi.STOP_MOVE, "StopMove")
    until(lambda: "the stop is confirmed" in lines.text("go2_bridge"), "the stop is confirmed")
    until(lambda: not robot.ready, "the heartbeat ends")
    until(robot.requests.rest, "no request any more")
    sent = len(robot.requests.seen)
    assert robot.change(Transition.TRANSITION_ACTIVATE)
    until(lambda: robot.observer.speed > 0.3, "robot moves again")
    assert SportApi.STAND_UP not in robot.requests.apis(sent)
    assert robot.change(Transition.TRANSITION_DEACTIVATE) and robot.change(Transition.TRANSITION_CLEANUP)
    assert robot.change(Transition.TRANSITION_CONFIGURE) and robot.change(Transition.TRANSITION_ACTIVATE)
    until(lambda: robot.observer.speed > 0.3, "robot moves after a new configuration")


def test_a_bridge_that_is_ended_stops_the_robot_first(robot: Dog, lines: Lines) -> None:
    robot.walk()
    robot.runner.stop("go2_bridge")
    until(lambda: "the stop is confirmed" in lines.text("go2_bridge"), "its line")
    until(lambda: robot.requests.last_api == SportApi.STOP_MOVE, "StopMove")
    robot.stands()


SAYS = "silent while it drove: the robot is stopped"


def test_the_watchdog_stops_the_robot_while_its_bridge_hangs_or_is_gone_unless_that_gave_it_up(
    robot: Dog, lines: Lines
) -> None:
    def noticed() -> int:
        return lines.text("stop_watchdog").count(SAYS)

    def notices() -> bool:
        """Whether the watchdog, which may find the bridge late, stops the robot when that stands still for a moment."""
        robot.walk()
        os.kill(robot.runner.pid("go2_bridge"), signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(robot.runner.pid("go2_bridge"), signal.SIGCONT)
        return noticed() > 0

    def stopped(before: int) -> None:
        until(lambda: noticed() > before, "the watchdog notices it")
        until(lambda: robot.requests.last_api == SportApi.STOP_MOVE, "the watchdog's stop")
        robot.stands()
        until(robot.requests.rest, "no request any more")
        assert robot.requests.last_api == SportApi.STOP_MOVE, "nobody drives the robot"

    robot.runner.start("stop_watchdog")
    until(notices, "the watchdog has heard the bridge")
    for number in (signal.SIGSTOP, signal.SIGKILL):
        until(lambda: robot.ready and robot.observer.speed > 0.3, "the bridge drives")
        before = noticed()
        os.kill(robot.runner.pid("go2_bridge"), number)
        stopped(before)
        if number == signal.SIGSTOP:
            os.kill(robot.runner.pid("go2_bridge"), signal.SIGCONT)
    robot.runner.start("go2_bridge")
    until(lambda: robot.ready and robot.observer.speed > 0.3, "a new bridge drives")

    def given_up() -> bool:
        robot.publish("e_stop", Bool(data=True))
        return not robot.ready and "e-stop" in lines.text("go2_bridge")

    until(given_up, "the heartbeat ends")
    until(robot.requests.rest, "the robot stands")
    before = noticed()
    os.kill(robot.runner.pid("go2_bridge"), signal.SIGKILL)
    until(lambda: time.monotonic() - robot.beaten_at > 2.0, "the time in which a stop would come")
    assert noticed() == before
