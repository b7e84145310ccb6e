"""The bridge with a toy robot that is registered here and nowhere else, on a clock of the test's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from spec_vlm_nav.bridge import STAND_RETRY_S, STOP_RETRY_S, Bridge
from spec_vlm_nav.graph import NodeSpec, robot_graph
from spec_vlm_nav.odometry import OdometrySample
from spec_vlm_nav.parameters import BRIDGE, BridgeSettings
from spec_vlm_nav.robot import Answer, Topic
from spec_vlm_nav.robots import ROBOTS, robot_of
from spec_vlm_nav.safety import Limits, Velocity, clamp

TICK_S = 0.05


class Call(NamedTuple):
    name: str
    identity: int
    velocity: Velocity = Velocity()


class Toy:
    """A cart that has its brake released before it rolls."""

    requests = Topic("/cart/in", "std_msgs/msg/String", "request_topic")
    answers = Topic("/cart/out", "std_msgs/msg/String", "request_topic")
    odom_topic = "/cart/odom"
    camera_topic = "/cart/camera"
    fastest = Velocity(0.5, 0.3, 0.6)
    stand_up: Sequence[Callable[[int], Call]] = (lambda identity: Call("release", identity),)

    def stop(self, identity: int) -> Call:
        return Call("brake", identity)

    def move(self, velocity: Velocity, limits: Limits, identity: int) -> Call:
        return Call("roll", identity, clamp(velocity, limits))

    def write(self, request: Call, message: Any) -> None:
        message.data = f"{request.name} {request.identity}"

    def read(self, message: Any) -> Answer:
        identity, _, problem = message.data.partition(" ")
        return Answer(int(identity), problem)


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, **_: Any) -> None:
        self.lines.append(f"info {message}")

    def warning(self, message: str, **_: Any) -> None:
        self.lines.append(f"warning {message}")

    def error(self, message: str, **_: Any) -> None:
        self.lines.append(f"error {message}")


class World:
    """A bridge, and a robot that confirms what it is asked unless it is `deaf`."""

    def __init__(self, limits: Limits | None = None, stand_up_s: float = 0.5) -> None:
        self.now, self.sent, self.log, self.deaf = 100.0, list[Call](), Log(), False
        self.bridge = Bridge(
            robot_of("toy"),
            limits or Limits(),
            BridgeSettings(robot="toy", stand_up_s=stand_up_s),
            self.now,
            self.sent.append,
            itertools.count(1).__next__,
            self.log,
        )

    def live(self, seconds: float, velocity: Velocity | None = None, speed: float | None = None) -> list[Call]:
        """Let time pass; return what was sent. velocity: commanded at every tick; speed: what odometry shows."""
        before = len(self.sent)
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            if speed is not None:
                sample = OdometrySample((0.0,) * 3, (0.0, 0.0, 0.0, 1.0), self.now, self.now, (speed, 0.0, 0.0))
                self.bridge.on_odometry(sample)
            begun = len(self.sent)
            if velocity is not None:
                self.bridge.on_velocity(velocity, self.now)
            self.bridge.tick(self.now)
            for call in self.sent[begun:]:
                if not self.deaf and call.name != "roll":
                    self.bridge.on_answer(Answer(call.identity))
        return self.sent[before:]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROBOTS, "toy", Toy())


def names(calls: Sequence[Call]) -> list[str]:
    return [call.name for call in calls]


def test_a_robot_that_does_not_answer_is_never_driven() -> None:
    world = World()
    world.deaf = True
    assert names(world.live(3.0, Velocity(0.3))) == ["release"] * math.ceil(3.0 / STAND_RETRY_S)
    assert not world.bridge.ready
    world.bridge.on_answer(Answer(world.sent[0].identity, "the battery is empty"))
    assert not world.bridge.ready and world.log.lines[-1] == "error the battery is empty"


def test_it_is_driven_when_it_stands_and_had_time_to_settle() -> None:
    world = World(stand_up_s=0.5)
    assert names(world.live(0.5, Velocity(0.3))) == ["release"]
    assert not world.bridge.ready, "confirmed, and settling"
    assert set(names(world.live(0.5, Velocity(0.3)))) == {"roll"}
    assert world.bridge.ready


def test_speeds_change_slowly_and_stay_within_limits() -> None:
    world = World(Limits(vx=0.4, acceleration=1.0), stand_up_s=0.0)
    world.live(0.2, Velocity())
    speeds = [call.velocity.vx for call in world.live(1.0, Velocity(9.0))]
    assert speeds[0] == pytest.approx(0.05) and speeds == sorted(speeds) and speeds[-1] == 0.4


@pytest.mark.parametrize("velocity", [None, Velocity(math.nan)])
def test_silence_and_nan_brake_until_the_robot_confirms_and_stands(velocity: Velocity | None) -> None:
    world = World(stand_up_s=0.0)
    world.live(0.5, Velocity(0.3), speed=0.3)
    calls = names(world.live(1.0, velocity, speed=0.3))
    stops = calls.count("brake")
    assert stops >= 0.7 / STOP_RETRY_S - 1, "odometry shows that it rolls on"
    assert set(calls[-stops:]) == {"brake"}
    world.live(STOP_RETRY_S * 2, velocity, speed=0.0)
    assert world.live(1.0, velocity, speed=0.0) == []
    assert any(line.startswith("warning stop: cmd_vel is") for line in world.log.lines)


def test_after_a_stop_it_speeds_up_from_standing() -> None:
    world = World(Limits(acceleration=1.0), stand_up_s=0.0)
    world.live(1.0, Velocity(0.4))
    world.live(1.0)
    assert world.live(TICK_S, Velocity(0.4))[-1].velocity.vx == pytest.approx(0.05)


def test_nothing_is_sent_after_the_last_stop() -> None:
    world = World(stand_up_s=0.0)
    world.live(0.5, Velocity(0.3))
    world.bridge.end()
    assert world.sent[-1].name == "brake"
    assert world.live(1.0, Velocity(0.3)) == []


def test_limits_above_the_robots_own_are_refused() -> None:
    with pytest.raises(ValueError, match="limit vx 0.9 is above 0.5, the most that toy allows"):
        World(Limits(vx=0.9))


def test_its_parameters_and_its_graph_take_it_by_name() -> None:
    values = {name: field.default for name, field in BRIDGE.fields().items()}
    assert BRIDGE.settings(values | {"robot": "toy"}).robot == "toy"
    graph = robot_graph("toy")
    assert graph.argument("odom_topic").default == "/cart/odom"
    assert graph.argument("camera_topic").default == "/cart/camera"
    nodes = {node.name: node for node in graph.processes if isinstance(node, NodeSpec)}
    assert {node.config for node in nodes.values()} == {"toy.yaml"}
    assert dict(nodes["go2_bridge"].parameters) == {"robot": "toy"}
