"""PicoSpec's throughput model and the reading of its tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.analytic import picospec
from speculation.acceptance import expected_tokens

seconds = st.floats(1e-3, 10.0)


def test_the_two_columns_without_heads_add_up_to_the_stop_and_wait_round() -> None:
    """What the round takes beyond them is under 5 %: sampling on the edge, serialisation."""
    for pair in picospec.PAIRS.values():
        assert 0.95 < (pair.serial_cloud_s + pair.serial_drafting_s) / pair.serial_round_s < 1.0


def test_the_link_that_the_tables_leave_is_the_same_for_both_pairs_of_models() -> None:
    """One testbed: 48, 49 and 49 ms; the last row says 41, its tokens a round are more than gamma + 1."""
    ways = [2e3 * pair.one_way_s for pair in picospec.PAIRS.values()]
    assert ways[:3] == pytest.approx([48.5] * 3, abs=1.0)
    assert ways[3] == pytest.approx(41.0, abs=1.0)


def test_stop_and_wait_is_what_the_paper_measured_without_parallel_drafting() -> None:
    """Eq. 7 with the printed length as E, on Qwen and GSM8K: 11.5 for 11.9 tokens per second, within 5 %."""
    pair = picospec.PAIRS["qwen_gsm8k"]
    alpha = picospec.acceptance_for(pair.accepted, picospec.GAMMA)
    rate = picospec.serial_rate(alpha, picospec.GAMMA, pair.drafting_s, 2 * pair.one_way_s, pair.decode_s)
    assert rate == pytest.approx(pair.serial_rate, rel=0.05)


@given(st.floats(0.0, 1.0), st.integers(1, 12), seconds, seconds, seconds)
def test_a_pipeline_is_never_slower_than_stop_and_wait_and_never_faster_than_its_bound(
    alpha: float, gamma: int, drafting: float, rtt: float, verify: float
) -> None:
    serial = picospec.serial_s(drafting, rtt, verify)
    piped = picospec.pipelined_s(alpha, gamma, drafting, rtt, verify)
    assert piped <= serial * (1 + 1e-9)
    assert serial / piped <= picospec.largest_gain(drafting, rtt, verify) * (1 + 1e-9)


def test_the_bound_is_reached_where_all_is_accepted_and_drafting_is_the_longest() -> None:
    assert picospec.serial_s(0.3, 0.1, 0.1) / picospec.pipelined_s(1.0, 4, 0.3, 0.1, 0.1) == pytest.approx(
        picospec.largest_gain(0.3, 0.1, 0.1)
    )


@given(st.floats(0.0, 1.0), st.integers(1, 12))
def test_the_acceptance_behind_a_length(alpha: float, gamma: int) -> None:
    found = picospec.acceptance_for(min(expected_tokens(alpha, gamma), gamma + 1.0), gamma)
    assert found == pytest.approx(alpha, abs=1e-6)


def test_a_length_that_no_acceptance_gives_is_refused() -> None:
    with pytest.raises(ValueError, match="5.43 tokens a round are outside 1 to 5"):
        picospec.acceptance_for(5.43, 4)
