"""DSSD: Table 1 to the last digit, where Tables 2 and the text leave the equations, and what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.analytic import dssd

rates = st.floats(1e4, 1e10)
alphas = st.floats(0.0, 1.0)
gammas = st.integers(1, 16)


def test_table_1_is_eq_9_at_the_link_that_its_figures_ask_for() -> None:
    """Half of the last printed digit, and a little for the paper's own rounding (24.715 is printed as 24.72)."""
    for (gamma, alpha), (share, milliseconds) in dssd.TABLE_1.items():
        assert dssd.rejected(alpha, gamma) == pytest.approx(share, abs=0.0061)
        seconds = dssd.comm_s(0.0, dssd.rejected(alpha, gamma) * dssd.TABLE_1_BITS, dssd.TABLE_1_LINK)
        assert 1e3 * seconds == pytest.approx(milliseconds, abs=0.011)


def test_table_2_of_dsd_is_near_eq_5_and_of_dssd_is_not_eq_9() -> None:
    """DSD within 25 % (its rounds are not printed); DSSD's time does not even change with the rate."""
    rounds = 50.5
    for row in dssd.TABLE_2[:5]:
        link = dssd.Link.symmetric(row.mbps, row.ntt_ms / 1e3)
        formula = rounds * dssd.dsd_comm_s(row.gamma, dssd.OPT_VOCABULARY, 16, link)
        assert formula == pytest.approx(row.dsd[0], rel=0.25)
    slow, fast = dssd.TABLE_2[2], dssd.TABLE_2[4]
    assert (slow.mbps, fast.mbps, slow.ntt_ms) == (10, 50, fast.ntt_ms)
    assert slow.dssd[0] == fast.dssd[0]


def test_the_bytes_that_the_text_names_are_less_than_one_distribution() -> None:
    assert dssd.dsd_bits(1, dssd.OPT_VOCABULARY, 16) / 8 > dssd.DSD_ROUND_BYTES
    assert dssd.dsd_bits(8, dssd.OPT_VOCABULARY, 16) / 8 / dssd.DSD_ROUND_BYTES == pytest.approx(13.1, abs=0.1)


def test_no_single_target_time_gives_table_3() -> None:
    asked = []
    for row in dssd.TABLE_3:
        link = dssd.Link.symmetric(row.mbps, row.ntt_ms / 1e3)
        comm = dssd.dssd_comm_s(dssd.TABLE_2_ALPHA, row.gamma, dssd.OPT_VOCABULARY, 16, link)
        found = dssd.target_s_for(row.dssd, dssd.TABLE_2_ALPHA, row.gamma, dssd.C_6_7B, comm)
        assert dssd.speed_up(dssd.TABLE_2_ALPHA, row.gamma, dssd.C_6_7B, found, comm) == pytest.approx(row.dssd)
        asked.append(found)
    assert max(asked) > 4 * min(asked)


@given(alphas, gammas, rates, st.floats(0.0, 1.0))
def test_split_sampling_stays_within_its_bounds_and_never_costs_more_than_whole_distributions(
    alpha: float, gamma: int, rate: float, ntt: float
) -> None:
    link = dssd.Link(rate, rate, ntt)
    low, high = dssd.dssd_comm_bounds_s(1000, 16, link)
    split = dssd.dssd_comm_s(alpha, gamma, 1000, 16, link)
    assert low <= split <= high * (1 + 1e-12)
    assert split <= dssd.dsd_comm_s(gamma, 1000, 16, link)


@given(alphas, gammas, rates, rates)
def test_a_faster_link_never_takes_longer(alpha: float, gamma: int, one: float, other: float) -> None:
    slow, fast = sorted((one, other))
    times = [dssd.dssd_comm_s(alpha, gamma, 1000, 16, dssd.Link(rate, rate, 0.02)) for rate in (slow, fast)]
    assert times[1] <= times[0]


def test_a_sparse_distribution_names_each_probability() -> None:
    assert dssd.sparse_bits(50, 151_936, 16) == 50 * (16 + 18)


def test_a_round_is_drafting_sending_and_verifying() -> None:
    assert dssd.round_s(4, 0.01, 0.1, 0.02) == pytest.approx(0.16)
    assert dssd.speed_up(0.0, 1, 0.5, 0.1, 0.05) == pytest.approx(0.1 / 0.2)
