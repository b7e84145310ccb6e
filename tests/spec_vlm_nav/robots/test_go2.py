"""The sport calls that may be made, and only those."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.robot import Answer, Robot
from spec_vlm_nav.robots.go2 import Go2, SportApi, SportRequest, describe, move, request
from spec_vlm_nav.safety import Limits, Velocity

GO2: Robot[SportRequest] = Go2()
FLIPS_AND_DAMP = (1001, 1030, 1031, 1032, 2041, 2043, 2044)


@given(st.integers(-(2**31), 2**31))
def test_only_the_allow_list_gets_out(api_id: int) -> None:
    allowed = {int(entry) for entry in SportApi} - {int(SportApi.MOVE)}
    if api_id in allowed:
        assert request(api_id, 5) == SportRequest(5, api_id, "{}", noreply=False)
    else:
        with pytest.raises(ValueError):
            request(api_id, 5)


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


def test_a_zero_move_is_a_request_too() -> None:
    assert json.loads(move(Velocity(), Limits(), 1).parameter) == {"x": 0.0, "y": 0.0, "z": 0.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_move_refuses_nan(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        move(Velocity(wz=bad), Limits(), 1)


def test_codes_become_sentences() -> None:
    assert describe(0) == ""
    assert "stand first" in describe(4206)
    assert "77777" in describe(77777)


def test_it_stands_up_and_balances_before_it_moves() -> None:
    assert [make(7) for make in GO2.stand_up] == [request(SportApi.STAND_UP, 7), request(SportApi.BALANCE_STAND, 7)]
    assert GO2.stop(8) == SportRequest(8, 1003, "{}", noreply=False)
    assert GO2.move(Velocity(9.0), Limits(vx=0.4), 9) == move(Velocity(0.4), Limits(), 9)


def response(api: SportApi, identity: int, code: int) -> Any:
    """Return a stand-in for a `unitree_api/Response`."""
    header = SimpleNamespace(identity=SimpleNamespace(id=identity, api_id=int(api)), status=SimpleNamespace(code=code))
    return SimpleNamespace(header=header)


def test_responses_become_answers() -> None:
    assert GO2.read(response(SportApi.STAND_UP, 5, 0)) == Answer(5)
    refused = GO2.read(response(SportApi.MOVE, 6, 4206))
    assert refused.identity == 6
    assert refused.problem.startswith("sport api 1008: code 4206: ") and "stand first" in refused.problem


def test_a_request_fills_the_message() -> None:
    message = SimpleNamespace(header=SimpleNamespace(identity=SimpleNamespace(), policy=SimpleNamespace()))
    GO2.write(SportRequest(3, 1008, "{}", noreply=True), message)
    header = message.header
    assert (message.parameter, header.identity.id, header.identity.api_id) == ("{}", 3, 1008)
    assert header.policy.noreply is True
