"""Allowance: so much at once, so much a second, for each on its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.limits import Allowance


def test_a_burst_then_the_rate_and_nobody_elses_share() -> None:
    allowance = Allowance(2.0, 3)
    assert [allowance.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.take("b", 0.0)
    assert not allowance.take("a", 0.4) and allowance.take("a", 0.5) and not allowance.take("a", 0.5)
    assert allowance.left("a", 100.0) == 3.0


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
