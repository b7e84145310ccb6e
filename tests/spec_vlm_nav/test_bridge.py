"""The bridge on a clock of the test's own: with a toy robot, which is registered here and nowhere else, and a Go2."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spec_vlm_nav.bridge import END_S, PROBE_S, RATE_HZ, STOP_RETRY_S, Bridge, battery_status
from spec_vlm_nav.diagnostics import Level
from spec_vlm_nav.guard import Guard, GuardSettings
from spec_vlm_nav.odometry import OdometrySample
from spec_vlm_nav.parameters import BridgeSettings
from spec_vlm_nav.robot import Answer, Posture, Robot, RobotState, Service, Topic
from spec_vlm_nav.robots import ROBOTS, robot_of
from spec_vlm_nav.robots.go2 import ALLOWED, AVOID, SPORT, AvoidApi, SportApi, SportRequest
from spec_vlm_nav.safety import Limits, Velocity, clamp
from spec_vlm_nav.stand_detection import SHOW_S, STAND_RETRY_S, STATE_WAIT_S

TICK_S = 1.0 / RATE_HZ


class Call(NamedTuple):
    name: str
    identity: int
    velocity: Velocity = Velocity()


CART = Service(Topic("/cart/in", "std_msgs/msg/String", "in_topic"), Topic("/cart/out", "std_msgs/msg/String", "out"))


class Toy:
    """A cart that has its brake released before it rolls."""

    services: Sequence[Service] = (CART,)
    topics: Sequence[Topic] = CART
    states: Topic | None = None
    remote: Topic | None = None
    battery: Topic | None = None
    obstacles: Topic | None = None
    odom_topic = "/cart/odom"
    camera_topic = "/cart/camera"
    fastest = Velocity(0.5, 0.3, 0.6)
    motion_services: Sequence[str] = ("sport",)
    stand_up: Sequence[Callable[[int], Call]] = (lambda identity: Call("release", identity),)
    take_control: Sequence[Callable[[int], Call]] = ()
    give_control: Sequence[Callable[[int], Call]] = ()
    stop_too: Sequence[Callable[[int], Call]] = ()

    def driven_by(self, motion_service: str) -> Toy:
        return self

    def stop(self, identity: int) -> Call:
        return Call("brake", identity)

    def move(self, velocity: Velocity, limits: Limits, identity: int, answered: bool = False) -> Call:
        return Call("roll", identity, clamp(velocity, limits))

    def service_of(self, request: Call) -> Service:
        return CART

    def write(self, request: Call, message: Any) -> None:
        message.data = f"{request.name} {request.identity}"

    def read(self, service: Service, message: Any) -> Answer:
        identity, _, problem = message.data.partition(" ")
        return Answer(int(identity), problem)

    def read_state(self, message: Any) -> Any:
        raise NotImplementedError

    read_remote = read_battery = read_state


class Log:
    """As rclpy's logger, one line of code has one level: another one is an exception in whoever logs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._levels: dict[tuple[str, int], str] = {}
        self.info = partial(self._note, "info")
        self.warning = partial(self._note, "warning")
        self.error = partial(self._note, "error")

    def _note(self, level: str, message: str, **_: Any) -> None:
        caller = sys._getframe(1)
        if self._levels.setdefault((caller.f_code.co_filename, caller.f_lineno), level) != level:
            raise ValueError("Logger severity cannot be changed between calls.")
        self.lines.append(f"{level} {message}")


class World:
    """A bridge, and a robot that confirms what it is asked unless it is `deaf`."""

    def __init__(self, limits: Limits | None = None, stand_up_s: float = 0.5) -> None:
        self.now, self.sent, self.deaf, self.log = 100.0, list[Call](), False, Log()
        self.bridge = Bridge(
            robot_of("toy"),
            limits or Limits(),
            BridgeSettings(robot="toy", stand_up_s=stand_up_s),
            self.now,
            self.sent.append,
            itertools.count(1).__next__,
            self.log,
        )
        self.bridge.activate(self.now)

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
                    self.bridge.on_answer(Answer(call.identity), self.now)
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
    world.bridge.on_answer(Answer(world.sent[0].identity, "the battery is empty"), world.now)
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
    assert speeds[0] == pytest.approx(TICK_S) and speeds == sorted(speeds) and speeds[-1] == 0.4


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


def test_the_stop_at_the_end_is_repeated_until_the_robot_answers_and_stands() -> None:
    world = World(stand_up_s=0.0)
    world.live(0.5, Velocity(0.3), speed=0.3)
    world.deaf = True
    world.bridge.deactivate(world.now)
    assert names(world.live(0.5, Velocity(0.3), speed=0.3)) == ["brake"] * int(0.5 / (STOP_RETRY_S + TICK_S))
    assert world.bridge.ending(world.now) and "0.30" in world.bridge.unconfirmed
    world.deaf = False
    world.live(STOP_RETRY_S + TICK_S, Velocity(0.3), speed=0.0)
    assert not world.bridge.ending(world.now) and not world.bridge.unconfirmed
    assert world.live(1.0, Velocity(0.3), speed=0.0) == [] and not world.bridge.ready
    world.bridge.activate(world.now)
    assert names(world.live(0.5, Velocity(0.3)))[0] == "release" and world.bridge.ready


def test_a_stop_that_nobody_confirms_is_not_repeated_for_ever() -> None:
    world = World(stand_up_s=0.0)
    world.live(0.5, Velocity(0.3))
    world.deaf = True
    world.bridge.deactivate(world.now)
    assert names(world.live(END_S - TICK_S)).count("brake") >= END_S / STOP_RETRY_S - 2
    world.live(2 * TICK_S)
    assert not world.bridge.ending(world.now)
    assert world.bridge.unconfirmed == "the robot did not answer the stop request"
    assert world.live(1.0, Velocity(0.3)) == [], "a person may drive it by remote control now"


def test_odometry_from_before_the_stop_does_not_confirm_it() -> None:
    world = World(stand_up_s=0.0)
    world.live(0.5, Velocity(0.3), speed=0.0)
    world.bridge.deactivate(world.now)
    world.bridge.on_answer(Answer(world.sent[-1].identity), world.now)
    assert world.bridge.unconfirmed == "nothing has shown since the stop that the robot stands"
    world.live(TICK_S, speed=0.0)
    assert not world.bridge.unconfirmed


def test_limits_above_the_robots_own_are_refused() -> None:
    with pytest.raises(ValueError, match="limit vx 0.9 is above 0.5, the most that toy allows"):
        World(Limits(vx=0.9))


class Dog:
    """A bridge and a Go2 that answers what it is asked unless it is `deaf`; `posture` is what its state shows."""

    def __init__(
        self, motion_service: str = "sport", posture: Posture | None = Posture.DOWN, guard: Guard | None = None
    ) -> None:
        self.robot: Robot[SportRequest] = robot_of("go2").driven_by(motion_service)
        self.now, self.sent, self.log, self.deaf = 100.0, list[SportRequest](), Log(), False
        self.posture, self.velocity, self.refuse = posture, Velocity(), dict[int, Answer]()
        self.obeys = True
        chosen = BridgeSettings(motion_service=motion_service, stand_up_s=0.2)
        self.bridge = Bridge(
            self.robot, Limits(), chosen, self.now, self.sent.append, itertools.count(1).__next__, self.log, guard
        )

    def live(self, seconds: float, velocity: Velocity | None = None, speed: float = 0.0) -> list[SportRequest]:
        """Let time pass with a state message and a tick each 20 ms; return what was sent."""
        before = len(self.sent)
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            if self.posture is not None:
                self.bridge.on_state(RobotState(self.posture, speed, 0.0, "it lies"), self.now)
            begun = len(self.sent)
            if velocity is not None:
                self.bridge.on_velocity(velocity, self.now)
            self.bridge.tick(self.now)
            for request in self.sent[begun:]:
                self.carry_out(request)
        return self.sent[before:]

    def carry_out(self, request: SportRequest) -> None:
        if self.deaf:
            return
        refused = self.refuse.get(request.api_id) if request.service == SPORT else None
        if self.posture is not None and self.obeys and request.service == SPORT and not refused:
            self.posture = Posture.STANDS if request.api_id == SportApi.BALANCE_STAND else self.posture
        if not request.noreply:
            answer = refused or Answer(request.identity)
            self.bridge.on_answer(answer._replace(identity=request.identity), self.now)

    def ready(self) -> Dog:
        self.bridge.activate(self.now)
        self.live(3.0, Velocity())
        assert self.bridge.ready
        return self


def sport(calls: Sequence[SportRequest]) -> list[int]:
    return [call.api_id for call in calls if call.service == SPORT]


def avoid(calls: Sequence[SportRequest]) -> list[int]:
    return [call.api_id for call in calls if call.service == AVOID]


UP = [SportApi.STAND_UP, SportApi.BALANCE_STAND]
UNREADY = Answer(0, "sport api 1008: code 4206: the robot must stand first", unready=True)


@pytest.mark.parametrize("posture", [Posture.DOWN, Posture.DAMPED, Posture.UNKNOWN, None])
def test_a_dog_that_does_not_stand_or_does_not_show_it_is_made_to(posture: Posture | None) -> None:
    dog = Dog(posture=posture)
    assert dog.live(1.0) == [], "not before it is activated"
    dog.bridge.activate(dog.now)
    assert sport(dog.live(3.0)) == [*UP, SportApi.STOP_MOVE], "nobody commands it: it stands"
    assert dog.bridge.ready


def test_a_dog_that_stands_is_asked_to_balance_only_and_its_state_is_waited_for_a_little() -> None:
    dog = Dog(posture=None)
    dog.bridge.activate(dog.now)
    assert dog.live(STATE_WAIT_S - 2 * TICK_S) == []
    dog.posture = Posture.STANDS
    assert sport(dog.live(0.2, Velocity()))[0] == SportApi.BALANCE_STAND
    assert dog.bridge.ready, "and needs no time to settle"


def test_it_is_not_ready_before_its_state_shows_that_it_stands_and_is_asked_again() -> None:
    dog = Dog()
    dog.obeys = False
    dog.bridge.activate(dog.now)
    assert sport(dog.live(2.0)) == UP and not dog.bridge.ready
    assert sport(dog.live(SHOW_S)) == UP and not dog.bridge.ready
    dog.posture = Posture.STANDS
    dog.live(0.5)
    assert dog.bridge.ready


def test_a_state_topic_that_falls_silent_says_nothing_any_more() -> None:
    dog = Dog()
    dog.obeys = False
    dog.bridge.activate(dog.now)
    dog.live(2.0)
    assert not dog.bridge.ready, "it was seen lying"
    dog.posture = None
    dog.live(1.0)
    assert not dog.bridge.ready
    dog.live(SHOW_S)
    assert dog.bridge.ready, "by its answers alone"
    assert dog.bridge.health(dog.now)[0].values["posture"] == "not known"


def test_a_dog_that_lies_down_is_not_ready_until_it_was_made_to_stand_again() -> None:
    dog = Dog().ready()
    dog.live(1.0, Velocity(0.3))
    dog.posture, dog.obeys = Posture.DOWN, False
    calls = dog.live(1.0, Velocity(0.3))
    assert not dog.bridge.ready
    assert sport(calls)[:2] == [SportApi.STOP_MOVE, SportApi.STAND_UP] and SportApi.MOVE not in sport(calls)
    assert "error not ready: it lies" in dog.log.lines
    dog.obeys = True
    dog.live(SHOW_S + 2.0, Velocity(0.3))
    assert dog.bridge.ready and sport(dog.sent)[-1] == SportApi.MOVE


def test_without_a_state_topic_a_refused_move_shows_that_it_does_not_stand() -> None:
    dog = Dog(posture=None).ready()
    dog.live(0.5, Velocity(0.3))
    dog.refuse = dict.fromkeys((SportApi.MOVE, SportApi.STOP_MOVE, SportApi.BALANCE_STAND), UNREADY)
    calls = dog.live(PROBE_S + 4 * TICK_S, Velocity(0.3))
    assert not dog.bridge.ready and SportApi.STAND_UP in sport(calls)
    dog.refuse = {}
    dog.live(4.0, Velocity(0.3))
    assert dog.bridge.ready


def test_answers_to_other_programs_count_for_nothing() -> None:
    dog = Dog().ready()
    dog.bridge.on_answer(UNREADY._replace(identity=987654321), dog.now)
    assert dog.bridge.ready and not any("4206" in line for line in dog.log.lines)


def test_a_dog_that_a_person_damped_lies_until_a_person_resets_it() -> None:
    dog = Dog().ready()
    dog.live(0.5, Velocity(0.3))
    dog.posture = Posture.DAMPED
    assert sport(dog.live(5.0, Velocity(0.3))) == [SportApi.STOP_MOVE]
    assert not dog.bridge.ready
    (robot, _) = dog.bridge.health(dog.now)
    assert robot.level == Level.ERROR and robot.message == "damped by the remote; reset with ~/reset"
    assert dog.bridge.reset(dog.now) == ""
    assert sport(dog.live(3.0, Velocity(0.3)))[:2] == UP
    assert dog.bridge.ready


def test_a_person_who_uses_the_remote_control_has_the_dog() -> None:
    dog = Dog().ready()
    dog.live(0.5, Velocity(0.3), speed=0.3)
    before = len(dog.sent)
    dog.bridge.on_remote(False, dog.now)
    assert dog.bridge.ready
    dog.bridge.on_remote(True, dog.now)
    dog.live(3.0, Velocity(0.3), speed=0.3)
    assert sport(dog.sent[before:]) == [SportApi.STOP_MOVE], "one, then nothing, though it moves"
    assert not dog.bridge.ready
    dog.bridge.on_remote(True, dog.now)
    assert "let go" in dog.bridge.reset(dog.now)
    dog.bridge.deactivate(dog.now)
    assert dog.live(1.0, Velocity(0.3), speed=0.3) == [] and not dog.bridge.unconfirmed, "nor at the end"
    dog.bridge.activate(dog.now)
    assert dog.live(1.0, Velocity(0.3)) == [], "activating is no reset"
    assert dog.bridge.reset(dog.now) == ""
    dog.live(1.0, Velocity(0.3))
    assert dog.bridge.ready


def test_an_e_stop_stops_until_it_stands_and_only_a_reset_clears_it() -> None:
    dog = Dog().ready()
    dog.live(0.5, Velocity(0.3), speed=0.3)
    before = len(dog.sent)
    dog.bridge.on_e_stop(True, dog.now)
    assert sport(dog.sent[before:]) == [SportApi.STOP_MOVE], "now, not at the next tick"
    calls = sport(dog.live(1.0, Velocity(0.3), speed=0.3))
    assert set(calls) == {SportApi.STOP_MOVE} and len(calls) >= 1.0 / (STOP_RETRY_S + TICK_S) - 1
    dog.live(0.5, Velocity(0.3))
    assert dog.live(1.0, Velocity(0.3)) == []
    assert "still pressed" in dog.bridge.reset(dog.now)
    dog.bridge.on_e_stop(False, dog.now)
    assert dog.live(1.0, Velocity(0.3)) == [] and not dog.bridge.ready, "letting go is no reset"
    assert dog.bridge.reset(dog.now) == ""
    dog.live(1.0, Velocity(0.3))
    assert dog.bridge.ready


def test_an_e_stop_before_activation_keeps_the_dog_lying() -> None:
    dog = Dog()
    dog.bridge.on_e_stop(True, dog.now)
    dog.bridge.activate(dog.now)
    assert set(sport(dog.live(2.0, Velocity(0.3)))) <= {SportApi.STOP_MOVE}


def test_a_person_may_drive_the_dog_away_during_an_e_stop() -> None:
    dog = Dog().ready()
    dog.bridge.on_e_stop(True, dog.now)
    dog.bridge.on_remote(True, dog.now)
    dog.live(0.1, speed=0.3)
    before = len(dog.sent)
    for _ in range(20):
        dog.bridge.on_remote(True, dog.now)
        dog.live(0.1, speed=0.3)
    assert len(dog.sent) == before


def test_what_was_commanded_before_it_was_ready_is_not_obeyed_late() -> None:
    dog = Dog()
    dog.bridge.activate(dog.now)
    while not dog.bridge.ready:
        dog.live(TICK_S, Velocity(0.3))
    assert SportApi.MOVE not in sport(dog.live(0.5))


def test_obstacle_avoidance_is_switched_on_confirmed_and_given_back() -> None:
    dog = Dog("obstacles_avoid").ready()
    assert avoid(dog.sent)[:3] == [AvoidApi.SWITCH_SET, AvoidApi.SWITCH_GET, AvoidApi.USE_REMOTE_COMMAND_FROM_API]
    calls = dog.live(0.5, Velocity(0.3))
    assert sport(calls) == [] and set(avoid(calls)) == {AvoidApi.MOVE}
    assert json.loads(calls[-1].parameter) == {"x": 0.3, "y": 0.0, "yaw": 0.0, "mode": 0}
    dog.bridge.deactivate(dog.now)
    calls = dog.live(0.5)
    assert dog.bridge.unconfirmed == ""
    last = [json.loads(call.parameter) for call in dog.sent if call.service == AVOID][-2:]
    assert last == [{"x": 0.0, "y": 0.0, "yaw": 0.0, "mode": 0}, {"is_remote_commands_from_api": False}]
    assert sport(dog.sent)[-1] == SportApi.STOP_MOVE, "on both services"


def test_the_remote_control_works_again_when_it_took_the_dog_from_avoidance() -> None:
    dog = Dog("obstacles_avoid").ready()
    dog.deaf = True
    dog.bridge.on_remote(True, dog.now)
    given_back = [call for call in dog.live(0.5) if call.service == AVOID]
    assert len(given_back) >= 3 and {call.api_id for call in given_back} == {AvoidApi.USE_REMOTE_COMMAND_FROM_API}
    dog.deaf = False
    dog.live(0.2)
    assert dog.live(2.0, Velocity(0.3)) == []
    assert dog.bridge.reset(dog.now) == ""
    assert avoid(dog.live(1.0, Velocity(0.3)))[:2] == [AvoidApi.SWITCH_SET, AvoidApi.SWITCH_GET]


def test_the_guard_stops_what_goes_ahead_and_lets_it_turn() -> None:
    guard = Guard(GuardSettings(guard="range", guard_x=0.3))
    dog = Dog(guard=guard).ready()

    def moves(velocity: Velocity, distance: float | None) -> dict[str, float]:
        for _ in range(20):
            if distance is not None:
                guard.on_message(Range(distance), dog.now)
            dog.live(2 * TICK_S, velocity)
        return dict(json.loads(dog.sent[-1].parameter))

    assert moves(Velocity(0.4), 2.0)["x"] == 0.4
    assert moves(Velocity(0.4), 0.6)["x"] == 0.2
    assert moves(Velocity(0.4), 0.2) == {"x": 0.0, "y": 0.0, "z": 0.0}
    assert moves(Velocity(0.4, 0.0, 0.5), 0.2) == {"x": 0.0, "y": 0.0, "z": 0.5}
    assert moves(Velocity(-0.4), 0.2)["x"] == -0.4
    assert moves(Velocity(0.4), 2.0)["x"] == 0.4
    assert moves(Velocity(0.4), None)["x"] == 0.0
    silent = "no motion ahead: the sensor (range) is silent"
    assert dog.bridge.health(dog.now)[-1].message == silent and f"warning guard: {silent}" in dog.log.lines


class Range(NamedTuple):
    range: float
    min_range: float = 0.05
    max_range: float = 4.0


speeds = st.floats(-2.0, 2.0) | st.sampled_from([math.nan, math.inf])
commands = st.builds(Velocity, speeds, speeds, speeds) | st.just(Velocity())
events = st.one_of(
    st.tuples(st.just("velocity"), commands),
    st.tuples(st.just("time"), st.floats(0.0, 3.0)),
    st.tuples(st.just("posture"), st.sampled_from([*Posture, None])),
    st.tuples(st.just("drive"), st.floats(0.0, 1.0)),
    st.tuples(st.just("refuse"), st.booleans()),
    st.tuples(st.just("deaf"), st.booleans()),
    st.tuples(st.just("e_stop"), st.booleans()),
    st.tuples(st.just("remote"), st.booleans()),
    st.sampled_from([("reset", None), ("activate", None), ("deactivate", None)]),
)


@settings(max_examples=100)
@given(st.sampled_from(["sport", "obstacles_avoid"]), st.lists(events, max_size=25))
@example("sport", [("time", 3.0), ("velocity", Velocity(0.3)), ("time", 0.02), ("e_stop", True), ("deactivate", None)])
@example("obstacles_avoid", [("drive", 1.0), ("remote", True), ("time", 1.0), ("reset", None), ("drive", 1.0)])
def test_whatever_happens_nothing_moves_unless_ready_every_stop_is_sent_and_no_other_id_leaves(
    motion_service: str, happening: list[tuple[str, Any]]
) -> None:
    dog = Dog(motion_service)
    dog.bridge.activate(dog.now)
    dog.live(1.0)
    refused = dict.fromkeys((SportApi.MOVE, SportApi.BALANCE_STAND, SportApi.STOP_MOVE), UNREADY)
    for what, value in happening:
        if what == "velocity":
            dog.bridge.on_velocity(value, dog.now)
        elif what == "time":
            dog.live(value)
        elif what == "posture":
            dog.posture = value
            dog.live(TICK_S)
        elif what == "drive":
            dog.live(value, Velocity(0.3, 0.0, 0.2))
        elif what == "refuse":
            dog.refuse = refused if value else {}
        elif what == "deaf":
            dog.deaf = value
        elif what == "e_stop":
            dog.bridge.on_e_stop(value, dog.now)
        elif what == "remote":
            dog.bridge.on_remote(value, dog.now)
        else:
            getattr(dog.bridge, what)(dog.now)
        assert dog.bridge.ready or not moving(dog.sent), "it moves only while the bridge holds it"
        if what == "velocity" and not (value.finite and value != Velocity()):
            assert not moving(dog.sent), "a stop is sent on at once"
    # Silence: whatever was going on, the last request on each service is none that moves.
    dog.live(0.3)
    assert not moving(dog.sent)
    for call in dog.sent:
        assert call.api_id in tuple(ALLOWED[call.service])
        dog.robot.write(call, Message())
        if moves(call):
            values = json.loads(call.parameter)
            turn = values["z" if call.service == SPORT else "yaw"]
            assert abs(values["x"]) <= 0.5 and abs(values["y"]) <= 0.3 and abs(turn) <= 0.6


class Message:
    """A `unitree_api/Request` to be filled."""

    def __init__(self) -> None:
        self.header = self
        self.identity = self.policy = self


def moves(call: SportRequest) -> bool:
    api = SportApi.MOVE if call.service == SPORT else AvoidApi.MOVE
    values = json.loads(call.parameter)
    return call.api_id == api and any(values.get(name) for name in ("x", "y", "z", "yaw"))


def moving(sent: Sequence[SportRequest]) -> bool:
    """Whether the last move that was sent is in force: neither a stop nor a move at standstill came after it."""
    for call in reversed(sent):
        if call.service == SPORT and call.api_id != SportApi.MOVE:
            return False
        if call.api_id == (SportApi.MOVE if call.service == SPORT else AvoidApi.MOVE):
            return moves(call)
    return False


def test_a_battery_that_runs_low_is_named() -> None:
    full, low = battery_status(87.0), battery_status(19.0)
    assert (full.level, full.message, low.level, low.message) == (Level.OK, "87 %", Level.WARN, "19 %, charge it")
