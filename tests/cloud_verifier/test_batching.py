"""Batch size and collect time are what a search over predicted times finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.batching import GROWTH, UNKNOWN_BATCH, Traffic, best_batch, best_wait
from cloud_verifier.estimator import Estimator
from speculation.pass_cost import PAPER_COSTS, Load, PassCost

costs = st.builds(
    PassCost, st.floats(1e-6, 1e-3), st.floats(0.0, 1e-7), st.floats(0.0, 1e-5), st.floats(1e-5, 0.1)
)  # fmt: skip
rows = st.builds(Load.row, st.integers(1, 60), st.integers(0, 2000))


@given(costs, rows, st.integers(1, 64))
def test_twice_the_rows_would_raise_tokens_per_second_by_less_than_the_limit(
    cost: PassCost, row: Load, most: int
) -> None:
    times = Estimator(cost)

    def rate(count: int) -> float:
        return count / times.seconds(Load.total([row] * count))

    found = best_batch(times, row, most)
    assert 1 <= found <= most
    assert all(rate(2 * count) >= (1.0 + GROWTH) * rate(count) * (1.0 - 1e-9) for count in range(1, found))
    assert found == most or rate(2 * found) <= (1.0 + GROWTH) * rate(found) * (1.0 + 1e-9)


def test_a_dearer_constant_makes_larger_batches() -> None:
    row = Load.row(5, 500)
    a100 = best_batch(Estimator(PAPER_COSTS["wisp-32b"]), row, 256)
    no_constant = best_batch(Estimator(PassCost(33.14e-6, 34.5e-9, 4.62e-6, 0.0)), row, 256)
    assert no_constant == 1 < a100 < 64
    assert best_batch(Estimator(PassCost(0.0, 0.0, 0.0, 0.1)), row, 256) == 256


def test_nothing_known_is_as_before() -> None:
    times = Estimator()
    assert best_batch(times, Load.row(5), 256) == UNKNOWN_BATCH and best_batch(times, Load.row(5), 3) == 3
    assert best_wait(times, Load.row(5), 0.0) == 0.0


def test_passes_of_one_size_show_no_price() -> None:
    """By the price that is assumed meanwhile a row of 33 tokens would have every forward for itself, for ever."""
    times, row = Estimator(), Load.row(33, 200)
    for _ in range(20):
        times.observe(row, 0.6)
    assert best_batch(times, row, 256) == UNKNOWN_BATCH
    for _ in range(20):
        times.observe(row + row, 0.61)
    assert best_batch(times, row, 256) > UNKNOWN_BATCH


@given(costs, rows, st.floats(0.0, 0.2))
def test_a_wait_pays_for_the_two_that_share_the_forward(cost: PassCost, row: Load, gap_s: float) -> None:
    times = Estimator(cost)
    one, two = times.seconds(row), times.seconds(row + row)
    wait = best_wait(times, row, gap_s)
    alone, together = one + 2.0 * one, 2.0 * (gap_s + two)
    if wait:
        assert gap_s < wait and together < alone + 1e-9
    else:
        assert together >= alone - 1e-9


def test_traffic_has_the_mean_row_and_the_pace_of_rows() -> None:
    traffic = Traffic()
    assert traffic.gap_s == float("inf") and traffic.row.rows == 1
    traffic.ran([], 0.0)
    for turn in range(5):
        traffic.ran([Load.row(4, 100), Load.row(6, 300)], 10.0 + turn)
    assert traffic.gap_s == pytest.approx(0.5)
    assert traffic.row == (Load.row(4, 100) + Load.row(6, 300)).mean
