"""The papers' formulas: what they give at the printed times, and what must hold for all times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.acceptance import expected_tokens
from vlm_nav_evaluation.formulas import (
    PICOSPEC,
    SYSTEMS,
    Pipeline,
    acceptance_for,
    cloud_s,
    dsd_s,
    dssd_s,
    fsd_s,
    layer_split_s,
    pipelined_s,
    sd_s,
)


@dataclass(frozen=True)
class Times:
    draft_s: float
    verify_s: float
    one_way_s: float
    sync_s: float = 0.0


seconds = st.floats(1e-3, 10.0)
gammas = st.integers(1, 16)
shares = st.floats(0.0, 1.0)


def test_table_4_at_the_go2s_times_is_not_what_was_measured_there() -> None:
    go2 = SYSTEMS["go2"]
    cloud, sd = cloud_s(go2, 200), sd_s(go2, 200, 4, go2.tau)
    fsd = fsd_s(go2, 200, 4, go2.tau, go2.miss)
    assert (cloud / sd, sd / fsd) == pytest.approx((1.58, 1.13), abs=0.005)
    assert cloud / sd > go2.ar_to_sd + 0.5
    assert sd / fsd_s(go2, 200, 4, go2.tau, 0.0) == pytest.approx(go2.sd_to_fsd, abs=0.006), "no miss gives 1.34x"


@given(seconds, seconds, seconds, gammas, shares, shares)
def test_pre_drafting_costs_nothing_where_threads_are_faster_than_drafting(
    draft: float, verify: float, way: float, gamma: int, miss: float, part: float
) -> None:
    times = Times(draft, verify, way, sync_s=part * gamma * draft)
    assert fsd_s(times, 200, gamma, 2.0, miss) <= sd_s(times, 200, gamma, 2.0) * (1.0 + 1e-9)


@given(seconds, seconds, seconds, seconds, gammas, shares)
def test_a_longer_way_never_makes_anything_faster(
    draft: float, verify: float, way: float, more: float, gamma: int, miss: float
) -> None:
    near, far = Times(draft, verify, way), Times(draft, verify, way + more)
    assert cloud_s(near, 200) < cloud_s(far, 200)
    assert sd_s(near, 200, gamma, 2.0) < sd_s(far, 200, gamma, 2.0)
    assert fsd_s(near, 200, gamma, 2.0, miss) < fsd_s(far, 200, gamma, 2.0, miss)
    assert pipelined_s(near, 200, gamma, miss) <= pipelined_s(far, 200, gamma, miss)


@given(shares, gammas, seconds, seconds, seconds)
def test_a_pipeline_is_never_slower_than_stop_and_wait_and_never_faster_than_its_bound(
    alpha: float, gamma: int, draft: float, verify: float, way: float
) -> None:
    """PicoSpec, Eq. 10: 1 + (T_rtt + T_verify) / T_draft, reached where all is accepted and drafting is the longest."""
    times = Times(draft, verify, way)
    tokens = expected_tokens(alpha, gamma - 1)
    serial, piped = sd_s(times, 200, gamma, tokens), pipelined_s(times, 200, gamma, alpha)
    bound = 1.0 + (2.0 * way + verify) / (gamma * draft)
    assert piped <= serial * (1 + 1e-9)
    assert serial / piped <= bound * (1 + 1e-9)
    slow = Times((2.0 * way + verify) / gamma, verify, way)
    assert sd_s(slow, 200, gamma, gamma) / pipelined_s(slow, 200, gamma, 1.0) == pytest.approx(2.0)


def test_split_layers_pay_one_round_trip_a_token() -> None:
    go2 = SYSTEMS["go2"]
    assert layer_split_s(go2, 10, 0.0, 5.0) == pytest.approx(10 * (0.24 + 0.62))
    assert layer_split_s(go2, 1, 0.5, 3.0) == pytest.approx(0.24 + 0.62 * 2.0)


@given(shares, st.integers(1, 12))
def test_the_acceptance_behind_a_length(alpha: float, gamma: int) -> None:
    found = acceptance_for(min(expected_tokens(alpha, gamma), gamma + 1.0), gamma)
    assert found == pytest.approx(alpha, abs=1e-6)


def test_a_length_that_no_acceptance_gives_is_refused() -> None:
    with pytest.raises(ValueError, match="5.43 tokens a round are outside 1 to 5"):
        acceptance_for(5.43, 4)


def test_picospecs_lengths_are_of_draft_tokens_and_a_full_hit_has_no_extra_one() -> None:
    """One acceptance for all draft lengths; rate x round is accepted + 1 - a^gamma within 2 %, which 1 more is not."""
    qwen = PICOSPEC[:4]
    assert [round(row.acceptance, 3) for row in qwen] == [0.817, 0.821, 0.817, 0.814]
    for row in PICOSPEC:
        gamma = row.gamma if row.accepted <= row.gamma else row.gamma_of_both
        tokens = expected_tokens(replace(row, gamma=gamma).acceptance, gamma - 1)
        assert tokens == pytest.approx(row.tokens, rel=0.02)
        assert row.accepted + 1.0 > row.tokens * 1.08


def test_llamas_lengths_are_longer_than_the_printed_draft() -> None:
    gsm8k, human_eval = PICOSPEC[5:]
    assert (gsm8k.gamma_of_both, human_eval.gamma_of_both) == (6, 7)
    assert math.isnan(gsm8k.acceptance) and gsm8k.gamma == 4


@given(shares.filter(lambda each: 0.0 < each < 1.0), st.integers(1, 8))
def test_the_draft_length_behind_a_row_is_found_again(alpha: float, gamma: int) -> None:
    tokens = expected_tokens(alpha, gamma - 1)
    row = Pipeline("", gamma, expected_tokens(alpha, gamma) - 1.0, tokens, 1.0, 0.1, 0.1, 0.1, 10.0)
    assert row.acceptance == pytest.approx(alpha, abs=1e-6)
    found = replace(row, gamma=row.gamma_of_both)
    assert expected_tokens(found.acceptance, found.gamma - 1) == pytest.approx(tokens, abs=1e-6)


def test_dssds_table_1() -> None:
    """800,000 bits at 100 Mbit/s and 20 ms, of which the paper names neither (gamma 8, acceptance 0.5, and 2, 0.99)."""
    link = (1e8, 0.02, 50_000)
    assert [round(1e3 * dssd_s(*each, *link), 2) for each in ((8, 0.5), (2, 0.99))] == [27.97, 20.16]


@given(shares, gammas, st.floats(1e4, 1e9), st.floats(0.0, 1.0), st.integers(1, 10**6))
def test_one_distribution_down_takes_no_longer_than_gamma_up(
    alpha: float, gamma: int, rate: float, around: float, vocabulary: int
) -> None:
    assert around <= dssd_s(gamma, alpha, rate, around, vocabulary) <= dsd_s(gamma, rate, around, vocabulary) + 1e-9
