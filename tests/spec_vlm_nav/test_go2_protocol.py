"""The sport calls that may be made, and only those."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.go2_protocol import Confirmed, SportApi, SportRequest, describe, move, request
from spec_vlm_nav.safety import Limits, Velocity

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


def test_a_call_is_repeated_until_the_robot_says_yes_to_one_of_its_ids() -> None:
    ids = iter(range(10, 100))
    call = Confirmed(SportApi.STAND_UP, lambda: next(ids), 1.0)
    first = call.due(0.0)
    assert first is not None and first.api_id == 1004
    assert call.due(0.5) is None
    second = call.due(1.0)
    assert second is not None and second.identity != first.identity
    call.answered(99, 0)
    call.answered(first.identity, 4206)
    assert not call.done
    call.answered(first.identity, 0)
    assert call.done and call.due(9.0) is None
    call.reopen()
    assert call.due(9.5) is not None
