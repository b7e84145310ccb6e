"""So much at once, so much a second, for each on its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.limits import Rate


def test_keys_of_long_ago_are_forgotten() -> None:
    rate = Rate.counted(1.0, 1)
    assert all(rate.take(key, 0.0) for key in range(Rate.MOST_KEYS + 1))
    assert rate.take(0, 0.0) and not rate.take(2, 0.0)


@given(st.lists(st.floats(0.0, 1.0), max_size=50), st.integers(1, 5), st.floats(0.1, 10.0))
def test_never_more_than_burst_and_rate(gaps: list[float], burst: int, rate: float) -> None:
    counted, now, taken = Rate.counted(rate, burst), 0.0, 0
    assert [counted.take("y", 1e6) for _ in range(burst + 1)] == [True] * burst + [False]
    for gap in gaps:
        now += gap
        taken += counted.take("x", now)
        assert taken <= burst + rate * now + 1e-4


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 50.0)), max_size=60), st.floats(0.5, 20.0))
def test_what_is_used_in_time_is_never_more_than_the_quota(uses: list[tuple[float, float]], per_s: float) -> None:
    """But for the last use, which may be of any size."""
    rate, now, used, largest = Rate(per_s, 4.0), 0.0, 0.0, 0.0
    for gap, amount in uses:
        now += gap
        if rate.wait("x", now) == 0.0:
            rate.use("x", amount, now)
            used, largest = used + amount, max(largest, amount)
        assert used <= per_s * (now + 4.0) + largest + 1e-4
