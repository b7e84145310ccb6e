"""Which time counts as standing, and which rows break the promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlm_nav_evaluation.link_loss.faults import FAULTS, GAP_S, LIMIT_S, PARTS, Kind, Row, attempts, problems, to_zero


def every(period: float, speed: float, start: float, end: float) -> list[tuple[float, float]]:
    count = int((end - start) / period) + 1
    return [(start + place * period, speed) for place in range(count)]


def test_a_row_is_measured_again_until_nothing_is_wrong_with_it() -> None:
    good, late = Row("robot", "cut", "moving", 0.1, 0.1, 2.0), Row("robot", "cut", "moving", 0.4, 0.1, 2.0)
    coming = iter([late, good, late])
    assert attempts(lambda: next(coming), 3) == [late, good]
    assert attempts(lambda: late, 3) == [late, late, late]


MOVING = every(0.05, 0.4, 9.0, 10.0)
SILENT = [*every(0.02, 0.4, 9.0, 10.1), (12.9, 0.0)]


@pytest.mark.parametrize(
    ("why", "commands", "expected"),
    [
        ("the first zero counts", [*every(0.02, 0.4, 9.0, 10.2), *every(0.02, 0.0, 10.22, 13.0)], 0.22),
        ("who fell silent commanded motion until the last message", SILENT, 0.1),
        ("no zero came afterwards", SILENT[:-1], 0.1),
        ("motion until the end of the fault is no stop", every(0.02, 0.4, 9.0, 13.5), None),
        ("it stood already", every(0.02, 0.0, 9.0, 13.0), 0.0),
        ("nothing was commanded", [], 0.0),
    ],
)
def test_standing_is_counted_from_the_last_command_to_move(
    why: str, commands: list[tuple[float, float]], expected: float | None
) -> None:
    found = to_zero(commands, 10.0, 13.0)
    assert found == (None if expected is None else pytest.approx(expected, abs=0.021)), why


@pytest.mark.parametrize(
    ("why", "commands", "until", "expected"),
    [
        ("the last request is obeyed for so long", MOVING, 13.0, 1.0),
        ("somebody stopped the robot before", [*MOVING, (10.2, 0.0)], 13.0, 0.2),
        ("somebody stopped it late", [*MOVING, (10.6, 0.0)], 13.0, 0.6),
        ("the fault ended before", MOVING, 10.5, None),
        ("it stood", every(0.05, 0.0, 9.0, 9.9), 13.0, 0.0),
    ],
)
def test_a_request_of_a_sender_that_fell_silent_is_obeyed_for_a_second(
    why: str, commands: list[tuple[float, float]], until: float, expected: float | None
) -> None:
    found = to_zero(commands, 10.0, until, obeyed_s=1.0)
    assert found == (None if expected is None else pytest.approx(expected)), why


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from([0.0, 0.3])), max_size=60),
    st.floats(0.0, 5.0),
    st.floats(GAP_S, 3.0),
)
def test_no_motion_is_commanded_between_the_stop_and_the_next_command(
    commands: list[tuple[float, float]], began: float, lasts: float
) -> None:
    commands = sorted(commands)
    found = to_zero(commands, began, began + lasts)
    if found is None:
        assert any(speed > 0.0 and time >= began for time, speed in commands)
    else:
        assert 0.0 <= found <= lasts
        inside = [(time, speed) for time, speed in commands if began <= time <= began + lasts]
        before_zero = [time for time, speed in inside if speed == 0.0][:1] or [began + lasts]
        late = [time for time, speed in inside if speed > 0.0 and found + began + 1e-9 < time < before_zero[0]]
        assert not late


def test_rows_beyond_the_limit_and_lost_goals_are_named() -> None:
    good = Row("action_executor", "freeze", "moving", 0.0, LIMIT_S, 2.0)
    late = Row("robot", "cut", "moving", LIMIT_S + 0.01, None, 2.0)
    lost = Row("verifier", "kill", "thinking", None, None, None)
    assert problems([good]) == []
    found = problems([good, late, lost])
    assert len(found) == 3 and all("robot cut" in each for each in found[:2]) and "did not go on" in found[2]


def test_what_is_due_depends_on_whose_input_is_lost() -> None:
    lost = Row("action_executor", "cut", "moving", 1.2, 0.2, 1.0)
    assert problems([lost, Row("verifier", "kill", "moving", 1.2, 1.2, 1.0)]) == []
    assert len(problems([Row("vlm_nav", "freeze", "moving", 1.2, 1.2, 1.0)])) == 2
    assert len(problems([Row("action_executor", "delay", "moving", 1.2, 0.4, 1.0)])) == 1


def test_every_part_has_every_fault_that_it_can_have() -> None:
    assert {fault.part for fault in FAULTS} == set(PARTS)
    for part in PARTS:
        kinds = {fault.kind for fault in FAULTS if fault.part == part}
        assert {Kind.CUT, Kind.DELAY} <= kinds
        assert part == "camera" or {Kind.KILL, Kind.FREEZE} <= kinds
