"""The sport service keeps the robot's rules, whatever it is sent."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlm_nav_simulation.sport import (
    AVOID_LIMITS,
    LIMITS,
    STANDSTILL,
    AvoidId,
    MotionServices,
    Posture,
    SportCode,
    SportId,
    Velocity,
    parse_move,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def move(x: float, y: float = 0.0, z: float = 0.0) -> str:
    return json.dumps({"x": x, "y": y, "z": z})


def test_move_holds_for_one_second_after_the_last_one() -> None:
    clock = Clock()
    service = MotionServices(clock)
    assert service.request_sport(SportId.MOVE, move(0.3, 0.1, -0.2)) == SportCode.OK
    clock.now += 0.9
    assert service.velocity() == Velocity(0.3, 0.1, -0.2)
    assert service.request_sport(SportId.MOVE, move(0.2)) == SportCode.OK
    assert service.velocity(clock.now + 0.99) == Velocity(0.2, 0.0, 0.0)
    assert service.velocity(clock.now + 1.0) == STANDSTILL


@pytest.mark.parametrize(
    "call", [SportId.STOP_MOVE, SportId.STAND_DOWN, SportId.DAMP, SportId.STAND_UP, SportId.BALANCE_STAND]
)
def test_every_other_call_ends_the_motion(call: SportId) -> None:
    service = MotionServices(Clock())
    service.request_sport(SportId.MOVE, move(0.5))
    assert service.request_sport(call, "{}") == SportCode.OK
    assert service.velocity() == STANDSTILL


def test_only_a_balanced_robot_walks() -> None:
    service = MotionServices(Clock(), Posture.LYING)
    assert service.request_sport(SportId.MOVE, move(0.5)) == SportCode.POSTURE
    assert service.request_sport(SportId.BALANCE_STAND) == SportCode.POSTURE
    assert service.request_sport(SportId.STAND_UP) == SportCode.OK
    assert service.request_sport(SportId.MOVE, move(0.5)) == SportCode.POSTURE
    assert service.request_sport(SportId.BALANCE_STAND) == SportCode.OK
    assert service.request_sport(SportId.MOVE, move(0.5)) == SportCode.OK
    assert service.velocity().x == 0.5
    postures = []
    for call in (SportId.DAMP, SportId.RECOVERY_STAND, SportId.STAND_DOWN):
        assert service.request_sport(call) == SportCode.OK
        postures.append(service.posture)
    assert postures == [Posture.LIMP, Posture.BALANCED, Posture.LYING]


@settings(max_examples=40)
@given(st.integers(-(2**63), 2**63 - 1).filter(lambda value: value not in set(SportId)), st.text(max_size=30))
def test_ids_outside_the_service_are_refused_and_change_nothing(api_id: int, parameter: str) -> None:
    service = MotionServices(Clock())
    service.request_sport(SportId.MOVE, move(0.4))
    assert service.request_sport(api_id, parameter) == SportCode.NOT_IMPLEMENTED
    assert (service.posture, service.velocity()) == (Posture.BALANCED, Velocity(0.4, 0.0, 0.0))


@pytest.mark.parametrize(
    "parameter",
    [
        "",
        "[1, 2, 3]",
        '{"x": 0.1, "y": 0}',
        '{"x": 0.1, "y": 0, "z": 0, "w": 0}',
        '{"x": true, "y": 0, "z": 0}',
        '{"x": NaN, "y": 0, "z": 0}',
        '{"x": 1' + "0" * 400 + ', "y": 0, "z": 0}',
        '{"x": 0.1, "y": 0, "z": 0' + " " * 2000 + "}",
        "[" * 900,
    ],
)
def test_a_bad_move_is_refused_and_the_last_one_stands(parameter: str) -> None:
    service = MotionServices(Clock())
    service.request_sport(SportId.MOVE, move(0.4))
    assert service.request_sport(SportId.MOVE, parameter) == SportCode.PARAMETER
    assert service.velocity() == Velocity(0.4, 0.0, 0.0)


@given(st.text(max_size=60) | st.tuples(*[st.floats()] * 3).map(lambda v: move(*v)))
def test_whatever_is_sent_the_velocity_is_finite_and_within_limits(parameter: str) -> None:
    velocity = parse_move(parameter)
    if velocity is not None:
        assert all(low <= v <= high for v, low, high in zip(velocity, *LIMITS, strict=True))
        assert all(math.isfinite(v) for v in velocity)


def test_the_state_shows_posture_and_gait() -> None:
    service = MotionServices(Clock(), Posture.LYING)
    assert service.state(STANDSTILL) == (5, 0, 1004)
    service.request_sport(SportId.STAND_UP)
    assert service.state(STANDSTILL) == (6, 0, 1002)
    service.request_sport(SportId.BALANCE_STAND)
    assert service.state(STANDSTILL) == (1, 0, 1013)
    assert service.state(Velocity(0.1, 0.0, 0.0)) == (3, 1, 1015)
    service.request_sport(SportId.DAMP)
    assert service.state(Velocity(0.1, 0.0, 0.0)) == (7, 0, 1001)


AVOIDING = '{"x": 0.3, "y": 0.0, "yaw": 0.2, "mode": 0}'
ON = {
    AvoidId.SWITCH_SET: '{"enable": true}',
    AvoidId.USE_REMOTE_COMMAND_FROM_API: '{"is_remote_commands_from_api": true}',
}
OFF = {api: parameter.replace("true", "false") for api, parameter in ON.items()}


def avoiding() -> MotionServices:
    """Return the services of a robot that obstacles_avoid commands."""
    services = MotionServices(Clock())
    for api, parameter in ON.items():
        assert services.request_avoid(api, parameter) == (SportCode.OK, "")
    return services


def test_avoidance_moves_the_robot_only_while_it_has_the_commands_and_then_alone() -> None:
    services = MotionServices(Clock())
    assert services.request_avoid(AvoidId.SWITCH_GET) == (SportCode.OK, '{"enable": false}')
    services.request_avoid(AvoidId.MOVE, AVOIDING)
    assert services.velocity() == STANDSTILL
    services = avoiding()
    assert services.request_avoid(AvoidId.SWITCH_GET) == (SportCode.OK, '{"enable": true}')
    assert services.request_avoid(AvoidId.MOVE, AVOIDING) == (SportCode.OK, "")
    for api, parameter in ((SportId.STOP_MOVE, "{}"), (SportId.MOVE, move(-0.5))):
        assert services.request_sport(api, parameter) == SportCode.OK
        assert services.velocity() == Velocity(0.3, 0.0, 0.2), "it is answered and has no effect"
    api = AvoidId.USE_REMOTE_COMMAND_FROM_API
    services.request_avoid(api, OFF[api])
    assert services.velocity() == STANDSTILL
    services.request_sport(SportId.MOVE, move(0.5))
    assert services.velocity() == Velocity(0.5, 0.0, 0.0)


def test_avoidance_that_is_switched_off_has_no_commands() -> None:
    services = avoiding()
    services.request_avoid(AvoidId.SWITCH_SET, OFF[AvoidId.SWITCH_SET])
    services.request_avoid(AvoidId.MOVE, AVOIDING)
    assert services.velocity() == STANDSTILL


@pytest.mark.parametrize(
    "api,parameter",
    [
        (AvoidId.SWITCH_SET, '{"enable": 1}'),
        (AvoidId.USE_REMOTE_COMMAND_FROM_API, '{"enable": true}'),
        (AvoidId.MOVE, '{"x": 0.1, "y": 0.0, "yaw": 0.0}'),
        (AvoidId.MOVE, '{"x": 0.1, "y": 0.0, "yaw": 0.0, "mode": 1}'),
        (AvoidId.MOVE, '{"x": NaN, "y": 0.0, "yaw": 0.0, "mode": 0}'),
        (AvoidId.MOVE, "[1]"),
    ],
)
def test_bad_parameters_of_avoidance_are_refused(api: AvoidId, parameter: str) -> None:
    services = avoiding()
    assert services.request_avoid(api, parameter)[0] == SportCode.PARAMETER
    assert services.request_avoid(9999, "{}")[0] == SportCode.NOT_IMPLEMENTED


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_avoidance_has_narrower_limits(x: float, y: float, yaw: float) -> None:
    services = avoiding()
    services.request_avoid(AvoidId.MOVE, json.dumps({"x": x, "y": y, "yaw": yaw, "mode": 0}))
    velocity = services.velocity()
    assert all(low <= v <= high for v, low, high in zip(velocity, *AVOID_LIMITS, strict=True))
