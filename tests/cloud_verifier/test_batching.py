"""Batch size and collect time are what a search over predicted times finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.batching import GROWTH, best_batch, best_wait
from cloud_verifier.estimator import Estimator
from speculation.pass_cost import Load, PassCost

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
