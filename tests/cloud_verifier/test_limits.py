"""Allowance: so much at once, so much a second, for each on its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.limits import Allowance, Rate


def test_keys_of_long_ago_are_forgotten() -> None:
    allowance = Allowance(1.0, 1)
    for key in range(Allowance.MOST_KEYS + 1):
        allowance.take(key, 0.0)
    assert allowance.left(0, 0.0) == 1.0 and allowance.left(1, 0.0) == 0.0


@given(st.lists(st.floats(0.0, 1.0), max_size=50), st.integers(1, 5), st.floats(0.1, 10.0))
def test_never_more_than_burst_and_rate(gaps: list[float], burst: int, rate: float) -> None:
    allowance, now, taken = Allowance(rate, burst), 0.0, 0
    for gap in gaps:
        now += gap
        taken += allowance.take("x", now)
        assert taken <= burst + rate * now + 1e-6


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 50.0)), max_size=60), st.floats(0.5, 20.0))
def test_what_is_used_in_time_is_never_more_than_the_quota(uses: list[tuple[float, float]], per_s: float) -> None:
    """But for the last use, which may be of any size."""
    rate, now, used, largest = Rate(per_s, 4.0), 0.0, 0.0, 0.0
    for gap, amount in uses:
        now += gap
        if rate.wait("x", now) == 0.0:
            rate.use("x", amount, now)
            used, largest = used + amount, max(largest, amount)
        assert used <= per_s * (now + 4.0) + largest + 1e-6
