"""The estimator learns a line from uneven passes, never a negative time, and claims less where it has seen less."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.estimator import PRIOR_SLOPE, WINDOW, Estimator
from speculation.pass_cost import Load

passes = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 70), st.floats(0.0, 10.0)), max_size=40)


@given(passes, st.integers(1, 8), st.integers(1, 600), st.integers(0, 50))
def test_a_prediction_is_never_negative_and_grows_with_the_tokens(
    seen: list[tuple[int, int, float]], rows: int, tokens: int, more: int
) -> None:
    times = Estimator()
    for each in seen:
        times.observe(Load(each[0], each[1]), each[2])
    assert times.known is bool(seen) and times.spread >= 0.0
    assert 0.0 <= times.seconds(Load(rows, tokens)) <= times.seconds(Load(rows, tokens + more))


def test_nothing_is_predicted_before_the_first_pass() -> None:
    times = Estimator()
    assert not times.known and times.seconds(Load.row(5)) == 0.0


def test_one_size_has_its_own_time_and_another_a_prior() -> None:
    times = Estimator()
    times.observe(Load.row(1), 0.1)
    assert times.seconds(Load.row(1)) == pytest.approx(0.1)
    assert times.seconds(Load.row(5)) == pytest.approx(0.1 * (1.0 + 4 * PRIOR_SLOPE)) == pytest.approx(0.17)
    times.observe(Load.row(3), 0.1)  # a target that feeds three tokens in the time of one
    assert times.seconds(Load.row(5)) == pytest.approx(0.1)


def test_a_line_is_found_among_uneven_passes_with_a_few_very_slow_ones() -> None:
    rng = random.Random(1)
    times = Estimator()
    for _ in range(WINDOW):
        tokens = rng.choice([1, 3, 5, 9])
        even = 0.05 + 0.004 * tokens
        times.observe(Load.row(tokens), even * (10.0 if rng.random() < 0.03 else rng.uniform(0.95, 1.05)))
    for tokens in (1, 5, 9, 15):
        assert times.seconds(Load.row(tokens)) == pytest.approx(0.05 + 0.004 * tokens, rel=0.06)
    assert 0.03 < times.spread < 0.2


def test_even_passes_have_no_spread() -> None:
    times = Estimator()
    for tokens in [1, 2, 5] * 5:
        times.observe(Load.row(tokens), 0.1 + 0.01 * tokens)
    assert times.spread == pytest.approx(0.0, abs=1e-9)


def test_it_follows_a_machine_that_became_slower() -> None:
    times = Estimator()
    for seconds in [0.1] * WINDOW + [0.3] * WINDOW:
        times.observe(Load.row(1), seconds)
    assert times.seconds(Load.row(1)) == pytest.approx(0.3)


def test_sizes_that_lie_on_no_line_are_no_unevenness() -> None:
    times = Estimator()
    for tokens, seconds in [(1, 0.1), (4, 0.2), (30, 0.21)] * 10:
        times.observe(Load.row(tokens), seconds)
    assert times.spread == pytest.approx(0.0, abs=1e-9)
