"""The papers' formulas: what they give at the printed times, and what must hold for all times."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.acceptance import expected_tokens
from vlm_nav_evaluation.formulas import (
    SYSTEMS,
    acceptance_for,
    cloud_s,
    fsd_s,
    layer_split_s,
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
