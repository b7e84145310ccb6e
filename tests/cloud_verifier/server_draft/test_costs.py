"""What drafting beside the target takes: medians, each turn of a draft for itself."""

from __future__ import annotations

from cloud_verifier.server_draft.costs import DraftCosts


def test_every_turn_has_its_median_and_deeper_ones_last_as_long_as_the_deepest_known() -> None:
    costs = DraftCosts()
    for first, second in ((1.0, 3.0), (9.0, 3.5), (2.0, 4.0)):
        costs.forward(1, first)
        costs.forward(2, second)
        costs.prefill(first)
    assert costs.prefill_s == 2.0
    assert [costs.forwards_s(depth) for depth in (1, 2, 4)] == [2.0, 5.5, 12.5]
    assert [costs.forward_s(turn) for turn in (1, 2, 4)] == [2.0, 3.5, 3.5]
