from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.predictor.drafts import Drafts
from adapters_training.predictor.measure import (
    Timings,
    auc,
    choose_threshold,
    compare,
    replay,
)
from speculation.predictor import FEATURES

TIMES = Timings(draft_s=0.1, fixed_s=1.0)


def drafts(*lengths: tuple[int, int]) -> Drafts:
    """Return drafts of (tokens, accepted) each; the first feature is the label of the token, or 0.5 without one."""
    labels, numbers, depths = [], [], []
    for number, (tokens, accepted) in enumerate(lengths):
        labels += [1] * accepted + [0, *[-1] * tokens][: tokens - accepted]
        numbers += [number] * tokens
        depths += range(1, tokens + 1)
    rows = np.zeros((len(labels), len(FEATURES)))
    label = np.array(labels)
    rows[:, 0], rows[:, -1] = np.where(label < 0, 0.5, label), depths
    return Drafts(rows, label, np.array(numbers), np.array(numbers), {"gamma": 8})


@pytest.mark.parametrize(
    ("logged", "chances", "gamma", "drafted", "accepted"),
    [
        ([(4, 1), (4, 4)], [1.0] * 8, 4, 8, 5),  # a draft that never stops costs all its tokens
        ([(4, 1), (4, 4), (3, 0)], None, 4, 7, 5),  # a prophet wastes one forward a rejection
        ([(4, 1), (4, 4), (3, 0)], None, 1, 3, 2),
        ([(4, 4)], [1.0, 0.1, 1.0, 1.0], 4, 2, 2),  # a false alarm costs the tokens behind it
    ],
)
def test_drafts_end_behind_the_first_token_below_the_threshold(
    logged: list[tuple[int, int]], chances: list[float] | None, gamma: int, drafted: int, accepted: int
) -> None:
    some = drafts(*logged)
    outcome = replay(some, some.features[:, 0] if chances is None else np.array(chances), 0.5, gamma, TIMES)
    committed = accepted + len(logged)
    assert outcome.token_s == pytest.approx((drafted * 0.1 + len(logged) * 1.0) / committed)
    assert outcome.wasted_s == pytest.approx((drafted - accepted) * 0.1 / committed)
    assert (outcome.length, outcome.acceptance) == pytest.approx((drafted / len(logged), accepted / drafted))


def test_a_token_that_is_predicted_to_be_rejected_but_right_is_lost_where_it_is_not_sent() -> None:
    some, chances = drafts((4, 4)), np.array([1.0, 0.1, 1.0, 1.0])
    sent, kept_back = (replay(some, chances, 0.5, 4, TIMES, is_sent) for is_sent in (True, False))
    assert sent.token_s == pytest.approx((2 * 0.1 + 1.0) / 3)
    assert kept_back.token_s == pytest.approx((2 * 0.1 + 1.0) / 2)
    wrong = drafts((4, 1))
    rates = [replay(wrong, wrong.features[:, 0], 0.5, 4, TIMES, each).token_s for each in (True, False)]
    assert rates[0] == rates[1]


def test_a_prophet_gains_what_was_wasted_and_lets_no_wrong_token_pass() -> None:
    some = drafts(*[(4, 1)] * 6, *[(4, 4)] * 6)
    found = compare(lambda rows: rows[:, 0], some, some, 4, TIMES)
    assert (found["auc"], found["fpr"], found["tpr"]) == (1.0, 0.0, 1.0)
    assert found["gain"] == found["gain_unsent"] == pytest.approx((1.4 * 12 / 42) / ((6 * 1.2 + 6 * 1.4) / 42) - 1.0)
    assert compare(lambda rows: 1.0 - rows[:, 0], some, some, 4, Timings(0.001, 1.0))["gain"] == 0.0


def test_the_threshold_saves_waste_without_costing_time() -> None:
    some = drafts(*[(4, 1)] * 6, *[(4, 4)] * 6)
    prophet = some.features[:, 0]
    threshold = choose_threshold(some, prophet, 4, TIMES)
    assert 0.0 < threshold < 1.0
    assert replay(some, prophet, threshold, 4, TIMES).wasted_s < replay(some, prophet, 0.0, 4, TIMES).wasted_s
    liar = 1.0 - prophet
    assert choose_threshold(some, liar, 4, Timings(0.001, 1.0)) == 0.0


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_counts_pairs(pairs: list[tuple[int, bool]]) -> None:
    good = [chance for chance, right in pairs if right]
    bad = [chance for chance, right in pairs if not right]
    wins = [(a > b) + 0.5 * (a == b) for a in good for b in bad]
    chances, truth = (np.array(part) for part in zip(*pairs, strict=True))
    assert auc(chances.astype(float), truth) == pytest.approx(sum(wins) / len(wins) if wins else 0.5)
