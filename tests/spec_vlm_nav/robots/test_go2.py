"""The sport calls that may be made, and only those."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.robot import Answer, Posture, Robot
from spec_vlm_nav.robots.go2 import (
    ALLOWED,
    AVOID,
    SPORT,
    AvoidApi,
    Go2,
    SportApi,
    SportRequest,
    move,
    request,
)
from spec_vlm_nav.safety import Limits, Velocity

GO2: Robot[SportRequest] = Go2()
FLIPS_AND_DAMP = (1001, 1030, 1031, 1032, 2041, 2043, 2044)


@pytest.mark.parametrize("api_id", FLIPS_AND_DAMP)
def test_a_flip_is_refused_with_the_list_of_what_is_allowed(api_id: int) -> None:
    with pytest.raises(ValueError, match=f"{api_id} is not on the allow-list: 1002 BALANCE_STAND"):
        request(api_id, 1)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_move_is_clamped_json_without_reply(vx: float, vy: float, wz: float) -> None:
    limits = Limits()
    made = move(Velocity(vx, vy, wz), limits, 9)
    values = json.loads(made.parameter)
    assert (made.identity, made.api_id, made.noreply) == (9, 1008, True)
    assert set(values) == {"x", "y", "z"}
    assert abs(values["x"]) <= limits.vx and abs(values["y"]) <= limits.vy and abs(values["z"]) <= limits.wz


def response(api: int, identity: int, code: int, data: str = "") -> Any:
    """Return a stand-in for a `unitree_api/Response`."""
    header = SimpleNamespace(identity=SimpleNamespace(id=identity, api_id=int(api)), status=SimpleNamespace(code=code))
    return SimpleNamespace(header=header, data=data)


@pytest.mark.parametrize("code", [4202, 4205, 4206])
def test_codes_of_a_robot_that_does_not_stand_or_was_started_anew(code: int) -> None:
    assert GO2.read(SPORT, response(SportApi.MOVE, 6, code)).unready
    assert not GO2.read(AVOID, response(AvoidApi.MOVE, 6, code)).unready
    assert not GO2.read(SPORT, response(SportApi.MOVE, 6, 3104)).unready


@pytest.mark.parametrize(
    "data,on", [('{"enable": true}', True), ('{"enable": false}', False), ("", False), ("[]", False)]
)
def test_avoidance_counts_as_on_when_it_says_so(data: str, on: bool) -> None:
    assert bool(GO2.read(AVOID, response(AvoidApi.SWITCH_GET, 5, 0, data)).problem) is not on
    assert GO2.read(SPORT, response(SportApi.BALANCE_STAND, 5, 0, data)) == Answer(5), "the numbers are the service's"


@pytest.mark.parametrize(
    "mode,error_code,posture",
    [
        (0, 0, Posture.UNKNOWN),
        (1, 0, Posture.STANDS),
        (3, 0, Posture.STANDS),
        (5, 0, Posture.DOWN),
        (7, 0, Posture.DAMPED),
        (10, 0, Posture.DOWN),
        (8, 0, Posture.UNKNOWN),
        (0, 1001, Posture.DAMPED),
        (0, 1002, Posture.DOWN),
        (0, 1004, Posture.DOWN),
        (0, 1007, Posture.DOWN),
        (0, 2006, Posture.DOWN),
        (6, 1013, Posture.STANDS),
        (0, 100, Posture.STANDS),
        (7, 99999, Posture.DAMPED),
    ],
)
def test_the_state_is_read_from_the_state_machine_and_from_the_mode_of_older_firmware(
    mode: int, error_code: int, posture: Posture
) -> None:
    message = SimpleNamespace(mode=mode, error_code=error_code, velocity=[0.3, 0.4, 9.0], yaw_speed=-0.2)
    state = GO2.read_state(message)
    assert (state.posture, state.speed, state.turn) == (posture, pytest.approx(0.5), -0.2)
    assert bool(state.problem) is (posture in (Posture.DOWN, Posture.DAMPED))


def test_sticks_in_use_differ_from_noise_and_any_key_counts() -> None:
    still = dict.fromkeys(("lx", "ly", "rx", "ry"), 0.02)
    assert not GO2.read_remote(SimpleNamespace(**still, keys=0))
    assert GO2.read_remote(SimpleNamespace(**still, keys=32))
    for stick in still:
        for value in (0.3, -0.3, math.nan):
            assert GO2.read_remote(SimpleNamespace(**{**still, stick: value}, keys=0))


@given(st.sampled_from([SPORT, AVOID]), st.integers(-10, 3000))
def test_whatever_made_a_request_no_other_id_is_written(service: Any, api_id: int) -> None:
    made = SportRequest(3, api_id, "{}", noreply=False, service=service)
    if api_id in tuple(ALLOWED[service]):
        GO2.write(made, empty())
    else:
        with pytest.raises(ValueError, match=f"api id {api_id} is not on the allow-list"):
            GO2.write(made, empty())


def empty() -> Any:
    """Return a stand-in for a `unitree_api/Request`."""
    return SimpleNamespace(header=SimpleNamespace(identity=SimpleNamespace(), policy=SimpleNamespace()))
