"""The sport service keeps the robot's rules, whatever it is sent."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.sport import LIMITS, STANDSTILL, Posture, SportCode, SportId, SportService, Velocity, parse_move


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def move(x: float, y: float = 0.0, z: float = 0.0) -> str:
    return json.dumps({"x": x, "y": y, "z": z})


def test_move_holds_for_one_second_after_the_last_one() -> None:
    clock = Clock()
    service = SportService(clock)
    assert service.request(SportId.MOVE, move(0.3, 0.1, -0.2)) == SportCode.OK
    clock.now += 0.9
    assert service.velocity() == Velocity(0.3, 0.1, -0.2)
    assert service.request(SportId.MOVE, move(0.2)) == SportCode.OK
    assert service.velocity(clock.now + 0.99) == Velocity(0.2, 0.0, 0.0)
    assert service.velocity(clock.now + 1.0) == STANDSTILL


@pytest.mark.parametrize(
    "call", [SportId.STOP_MOVE, SportId.STAND_DOWN, SportId.DAMP, SportId.STAND_UP, SportId.BALANCE_STAND]
)
def test_every_other_call_ends_the_motion(call: SportId) -> None:
    service = SportService(Clock())
    service.request(SportId.MOVE, move(0.5))
    assert service.request(call, "{}") == SportCode.OK
    assert service.velocity() == STANDSTILL


def test_only_a_balanced_robot_walks() -> None:
    service = SportService(Clock(), Posture.LYING)
    assert service.request(SportId.MOVE, move(0.5)) == SportCode.POSTURE
    assert service.request(SportId.BALANCE_STAND) == SportCode.POSTURE
    assert service.request(SportId.STAND_UP) == SportCode.OK
    assert service.request(SportId.MOVE, move(0.5)) == SportCode.POSTURE
    assert service.request(SportId.BALANCE_STAND) == SportCode.OK
    assert service.request(SportId.MOVE, move(0.5)) == SportCode.OK
    assert service.velocity().x == 0.5
    postures = []
    for call in (SportId.DAMP, SportId.RECOVERY_STAND, SportId.STAND_DOWN):
        assert service.request(call) == SportCode.OK
        postures.append(service.posture)
    assert postures == [Posture.LIMP, Posture.BALANCED, Posture.LYING]


@given(st.integers(-(2**63), 2**63 - 1).filter(lambda value: value not in set(SportId)), st.text(max_size=30))
def test_ids_outside_the_service_are_refused_and_change_nothing(api_id: int, parameter: str) -> None:
    service = SportService(Clock())
    service.request(SportId.MOVE, move(0.4))
    assert service.request(api_id, parameter) == SportCode.NOT_IMPLEMENTED
    assert (service.posture, service.velocity()) == (Posture.BALANCED, Velocity(0.4, 0.0, 0.0))


@pytest.mark.parametrize(
    "parameter",
    [
        "",
        "{}",
        "[1, 2, 3]",
        "1",
        '{"x": 0.1, "y": 0}',
        '{"x": 0.1, "y": 0, "yaw": 0}',
        '{"x": 0.1, "y": 0, "z": 0, "w": 0}',
        '{"x": "0.1", "y": 0, "z": 0}',
        '{"x": true, "y": 0, "z": 0}',
        '{"x": NaN, "y": 0, "z": 0}',
        '{"x": Infinity, "y": 0, "z": 0}',
        '{"x": 1' + "0" * 400 + ', "y": 0, "z": 0}',
        '{"x": 0.1, "y": 0, "z": 0' + " " * 2000 + "}",
        "[" * 900,
    ],
)
def test_a_bad_move_is_refused_and_the_last_one_stands(parameter: str) -> None:
    service = SportService(Clock())
    service.request(SportId.MOVE, move(0.4))
    assert service.request(SportId.MOVE, parameter) == SportCode.PARAMETER
    assert service.velocity() == Velocity(0.4, 0.0, 0.0)


@given(st.text(max_size=60) | st.tuples(*[st.floats()] * 3).map(lambda v: move(*v)))
def test_whatever_is_sent_the_velocity_is_finite_and_within_limits(parameter: str) -> None:
    velocity = parse_move(parameter)
    if velocity is not None:
        assert all(low <= v <= high for v, low, high in zip(velocity, *LIMITS, strict=True))
        assert all(math.isfinite(v) for v in velocity)


def test_limits_clamp() -> None:
    assert parse_move(move(9.0, -9.0, 9.0)) == Velocity(3.8, -1.0, 4.0)
