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


def test_the_first_zero_counts() -> None:
    commands = [*every(0.02, 0.4, 9.0, 10.2), *every(0.02, 0.0, 10.22, 13.0)]
    assert to_zero(commands, 10.0, 13.0) == pytest.approx(0.22, abs=0.021)


def test_a_sender_that_fell_silent_commanded_motion_until_its_last_message() -> None:
    commands = [*every(0.02, 0.4, 9.0, 10.1), (12.9, 0.0)]
    assert to_zero(commands, 10.0, 13.0) == pytest.approx(0.1, abs=0.021)
    assert to_zero(commands[:-1], 10.0, 13.0) == pytest.approx(0.1, abs=0.021)


def test_the_last_request_of_a_sender_that_fell_silent_is_obeyed_until_somebody_stops_the_robot() -> None:
    moving = every(0.05, 0.4, 9.0, 10.0)
    assert to_zero(moving, 10.0, 13.0, obeyed_s=1.0) == pytest.approx(1.0)
    assert to_zero([*moving, (10.2, 0.0)], 10.0, 13.0, obeyed_s=1.0) == pytest.approx(0.2)
    assert to_zero([*moving, (10.6, 0.0)], 10.0, 13.0, obeyed_s=1.0) == pytest.approx(0.6)
    assert to_zero(moving, 10.0, 10.5, obeyed_s=1.0) is None
    assert to_zero(every(0.05, 0.0, 9.0, 9.9), 10.0, 13.0, obeyed_s=1.0) == 0.0, "it stood"


def test_motion_until_the_end_of_the_fault_is_no_stop() -> None:
    assert to_zero(every(0.02, 0.4, 9.0, 13.5), 10.0, 13.0) is None


def test_a_robot_that_stood_already_takes_no_time() -> None:
    assert to_zero(every(0.05, 0.0, 9.0, 13.0), 10.0, 13.0) == pytest.approx(0.0, abs=0.051)
    assert to_zero([], 10.0, 13.0) == 0.0


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
