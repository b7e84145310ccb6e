"""Simulated robot and bridge as processes: whatever happens upstream, the robot ends up standing."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from geometry_msgs.msg import Twist

from evaluation.nodes.observer import Observer
from spec_vlm_nav.graph import SIM_GRAPH
from spec_vlm_nav.robots.go2 import SportApi
from spec_vlm_nav.runner import Runner
from tests.system.conftest import Lines, until

REQUESTS = "api/sport/request"
STANDS = 0.01


class Requests:
    """Every sport request, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def __call__(self, topic: str, message: Any) -> None:
        if topic == REQUESTS:
            self.seen.append((message.header.identity.api_id, message.parameter))

    @property
    def last_api(self) -> int:
        return self.seen[-1][0] if self.seen else 0

    @property
    def last_move(self) -> dict[str, float]:
        return dict(json.loads(next(p for api, p in reversed(self.seen) if api == SportApi.MOVE)))


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


@pytest.fixture
def robot(lines: Lines) -> Iterator[tuple[Observer, Requests, Driver, Runner]]:
    """A simulated robot that the bridge has made stand."""
    requests = Requests()
    with Runner(SIM_GRAPH, {"seed": "3"}, lines) as runner, Observer(requests) as observer:
        runner.start("sim_go2", "go2_bridge")
        until(lambda: "heartbeat/go2_bridge" in observer.last and "ground_truth" in observer.last, "bridge ready", 60.0)
        until(lambda: observer.truth["posture"] == "standing, balanced", "robot balanced")
        driver = Driver(observer)
        yield observer, requests, driver, runner
        driver.close()


def test_the_robot_is_driven_clamped_and_stopped_when_cmd_vel_goes_silent(robot: Any) -> None:
    observer, requests, driver, _ = robot
    driver.send(vx=9.0, wz=-9.0)
    until(lambda: observer.speed > 0.4, "robot moves")
    assert requests.last_move["x"] <= 0.5 and requests.last_move["z"] >= -0.8
    driver.twist = None
    # The last Move would end by itself after its hold; what counts is that the bridge sent StopMove.
    until(lambda: requests.last_api == SportApi.STOP_MOVE, "StopMove")
    until(lambda: observer.speed < STANDS, "robot stands")
    driver.send(vx=0.2)
    until(lambda: observer.speed > 0.1, "robot moves again after the silence")


def test_a_zero_twist_reaches_the_robot(robot: Any) -> None:
    observer, requests, driver, _ = robot
    driver.send(vx=0.4)
    until(lambda: observer.speed > 0.3, "robot moves")
    driver.send()
    until(lambda: requests.last_move == {"x": 0.0, "y": 0.0, "z": 0.0}, "zero Move")
    until(lambda: observer.speed < STANDS, "robot stands")
    assert requests.last_api == SportApi.MOVE


def test_nan_stops_the_robot_although_twists_keep_coming(robot: Any) -> None:
    observer, requests, driver, _ = robot
    driver.send(vx=0.4)
    until(lambda: observer.speed > 0.3, "robot moves")
    driver.send(vx=math.nan)
    until(lambda: requests.last_api == SportApi.STOP_MOVE, "StopMove")
    until(lambda: observer.speed < STANDS, "robot stands")
    assert not any("nan" in parameter.lower() for _, parameter in requests.seen)


def test_a_bridge_that_is_ended_sends_a_stop_first(robot: Any) -> None:
    observer, requests, driver, runner = robot
    driver.send(vx=0.4)
    until(lambda: observer.speed > 0.3, "robot moves")
    runner.stop("go2_bridge")
    until(lambda: requests.last_api == SportApi.STOP_MOVE, "StopMove")
    until(lambda: observer.speed < STANDS, "robot stands")


def test_only_what_is_allowed_was_ever_requested(robot: Any) -> None:
    observer, requests, driver, _ = robot
    driver.send(vx=0.1)
    until(lambda: observer.speed > 0.05, "robot moves")
    driver.twist = None
    until(lambda: requests.last_api == SportApi.STOP_MOVE, "StopMove")
    assert {api for api, _ in requests.seen} <= {int(entry) for entry in SportApi}
