from __future__ import annotations

from speculation.language.prompts import STOP, ActionKind, ActionSize, NavigationAction
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
    assert found["left_right_swapped"] == 0.25
    assert (found["stop_precision"], found["stop_recall"]) == (0.5, 0.5)
    assert "37.5%" in agreement_table({"fsd": found})


def test_without_stops_there_is_no_stop_rate() -> None:
    found = agreement([(LEFT, LEFT)])
    assert found["stop_precision"] is None and found["stop_recall"] is None
    assert percent(None) == "-"
    assert agreement([])["exact"] is None
