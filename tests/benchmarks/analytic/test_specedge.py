"""SpecEdge's Eq. 1, its depth rule and its baseline, against what it prints."""

from __future__ import annotations

import pytest

from benchmarks.analytic import specedge
from benchmarks.analytic.early_exits import SYSTEMS
from edge_drafter.controller import balanced_gamma


def test_the_depth_rule_gives_the_printed_depths() -> None:
    edge = specedge.PRINTED
    for rtt_s, depth in specedge.DEPTHS.items():
        assert round(balanced_gamma(edge.verify_s, edge.draft_s, rtt_s)) == depth


def test_split_layers_pay_one_round_trip_a_token() -> None:
    """Sec. 5.3: 35 ms more of round trip make a token 35.3 ms slower, 1 % off."""
    (near, near_s), (far, far_s) = specedge.SPLIT_TOKEN_S.items()
    assert far_s - near_s == pytest.approx(far - near, rel=0.02)
    go2 = SYSTEMS["go2"]
    assert specedge.layer_split_s(go2, 10, 0.0, 5.0) == pytest.approx(10 * (0.24 + 0.62))
    assert specedge.layer_split_s(go2, 1, 0.5, 3.0) == pytest.approx(0.24 + 0.62 * 2.0)


def test_more_heads_save_less_for_each_alignment() -> None:
    assert specedge.proactive_gain(0.5, 0.5, 9, 1) == pytest.approx(2.0)
    assert specedge.proactive_gain(0.5, 0.5, 9, 3) == pytest.approx(0.5)
    assert specedge.proactive_gain(1.0, 1.0, 3, 3) == 0.0


@pytest.mark.parametrize("wrong", [(1.5, 0.5, 4, 1), (0.5, -0.1, 4, 1), (0.5, 0.5, 4, 0)])
def test_chances_and_heads_that_cannot_be_are_refused(wrong: tuple[float, float, int, int]) -> None:
    with pytest.raises(ValueError, match="chances"):
        specedge.proactive_gain(*wrong)
