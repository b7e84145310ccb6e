"""The number of replicas follows demand within its limits, and comes to rest."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.cluster.scaling import Scaler, Scaling


def run(scaler: Scaler, count: int, work: float, seconds: float, now: float, late: float = 0.0) -> tuple[int, int]:
    """Let so many replicas, which start and stop at once, share the work; return their number and its changes."""
    changes = 0
    for second in range(int(seconds)):
        wanted = scaler.wanted(count, work, late, now + second)
        changes += wanted != count
        count = wanted
    return count, changes


@settings(max_examples=50)
@given(st.floats(0.0, 30.0), st.integers(1, 4), st.integers(0, 12), st.floats(0.05, 1.0))
def test_under_constant_work_it_comes_to_rest_at_what_is_needed(
    work: float, least: int, more: int, target: float
) -> None:
    settings = Scaling(least, least + more, target, up_s=2.0, down_s=3.0)
    scaler = Scaler(settings)
    count, _ = run(scaler, least, work, 100, 0.0)
    assert run(scaler, count, work, 100, 1000.0) == (count, 0)
    assert count >= min(settings.max, math.ceil(work / target - 1e-9)) and settings.min <= count <= settings.max


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 1.0)), max_size=60))
def test_whatever_is_reported_it_stays_within_its_limits(reports: list[tuple[float, float]]) -> None:
    scaler, count = Scaler(Scaling(2, 5, up_s=0.0, down_s=0.0)), 2
    for now, (utilisation, late) in enumerate(reports):
        count = scaler.wanted(count, count * utilisation, late, float(now))
        assert 2 <= count <= 5


def test_it_goes_down_one_at_a_time_once_work_is_gone() -> None:
    scaler = Scaler(Scaling(1, 8, up_s=1.0, down_s=10.0))
    count, changes = run(scaler, 1, 5.6, 20, 0.0)
    assert (count, changes) == (8, 1)
    assert run(scaler, 8, 0.0, 10, 100.0) == (8, 0)
    assert run(scaler, 8, 0.0, 200, 200.0) == (1, 7)


def test_broken_promises_ask_for_one_more() -> None:
    scaler = Scaler(Scaling(1, 4, up_s=0.0))
    assert scaler.wanted(1, 0.1, 0.04, 0.0) == 1
    assert scaler.wanted(1, 0.1, 0.06, 1.0) == 2
