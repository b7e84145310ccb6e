from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speculation.language.prompts import ACTIONS, NOT_HERE, STOP, ActionKind, ActionSize, NavigationAction
from vlm_nav_evaluation.replay.agreement import Pair, agreement, agreement_table, percent

LEFT = NavigationAction(ActionKind.TURN_LEFT, ActionSize.SMALL)
FAR_LEFT = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
RIGHT = NavigationAction(ActionKind.TURN_RIGHT, ActionSize.SMALL)
AHEAD = NavigationAction(ActionKind.FORWARD, ActionSize.LARGE)


def test_rates_say_what_was_equal_and_what_was_mixed_up() -> None:
    pairs: list[Pair] = [
        (LEFT, LEFT), (FAR_LEFT, LEFT), (RIGHT, LEFT), (RIGHT, RIGHT), (STOP, STOP), (STOP, AHEAD), (AHEAD, STOP),
        (None, AHEAD),
    ]  # fmt: skip
    found = agreement(pairs)
    assert (found["frames"], found["exact"], found["kind"], found["unreadable"]) == (8, 3 / 8, 4 / 8, 1)
    assert found["left_right"] == {"left as left": 2, "left as right": 1, "right as left": 0, "right as right": 1}
    assert found["left_right_swapped"] == 0.25
    assert (found["stop_precision"], found["stop_recall"]) == (0.5, 0.5)
    assert found["confusion"][0] == [0, 0, 0, 1, 1]
    assert "37.5%" in agreement_table({"fsd": found})


def test_not_here_has_a_row_and_a_column_where_it_occurs() -> None:
    found = agreement([(NOT_HERE, LEFT), (NOT_HERE, NOT_HERE), (None, NOT_HERE)])
    assert found["confusion"][1] == [0, 0, 0, 0, 1, 0] and found["confusion"][4] == [0, 0, 0, 0, 1, 1]
    assert (found["kind"], found["unreadable"]) == (1 / 3, 1)


def test_without_stops_there_is_no_stop_rate() -> None:
    found = agreement([(LEFT, LEFT)])
    assert found["stop_precision"] is None and found["stop_recall"] is None
    assert percent(None) == "-"
    assert agreement([])["exact"] is None


@given(st.lists(st.tuples(st.sampled_from([*ACTIONS, None]), st.sampled_from(ACTIONS)), min_size=1, max_size=40))
def test_every_pair_is_counted_once(pairs: list[Pair]) -> None:
    found = agreement(pairs)
    assert sum(map(sum, found["confusion"])) == found["frames"] == len(pairs)
    assert 0.0 <= found["exact"] <= found["kind"] <= 1.0
