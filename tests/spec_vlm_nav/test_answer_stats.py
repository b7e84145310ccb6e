"""How answers were decoded, as `/diagnostics` shows it."""

from __future__ import annotations

import pytest

from edge_drafter.stats import DecodingStats
from spec_vlm_nav.answer_stats import GAIN, KEPT, AnswerStats, estimated_gain


def test_figures_are_over_the_latest_answers_only() -> None:
    answers = AnswerStats()
    assert answers.status("fsd").message == "no answer yet"
    answers.note(DecodingStats(mode="edge", drafted=1000, accepted=0))
    for _ in range(KEPT):
        answers.note(
            DecodingStats(mode="full", drafted=10, accepted=7, hits=3, misses=1, early_hits={8: 1, 4: 2}, total_s=0.5)
        )
    status = answers.status("full")
    assert status.message == "last answer in 0.50 s"
    assert status.values["accepted of drafted"] == 0.7 and status.values["miss rate"] == 0.25
    assert status.values["hits by exit layer"] == f"4: {2 * KEPT}, 8: {KEPT}"
    assert status.values["answers"] == KEPT and status.values["mode"] == "full"


def test_the_gain_is_what_the_cloud_alone_would_have_needed_over_what_it_took() -> None:
    """The cloud alone: 0.1 s prefill, twenty passes of 20 ms, one round trip."""
    drafted = DecodingStats(
        mode="full",
        tokens=20,
        cloud_passes=5,
        total_s=0.27,
        server_prefill_s=0.1,
        server_compute_s=0.1,
        estimated_rtt_s=0.04,
    )
    assert estimated_gain([drafted, drafted]) == pytest.approx(2.0)
    answers = AnswerStats()
    answers.note(drafted)
    assert answers.status("full").values[GAIN] == pytest.approx(2.0)
    nobody_drafted = [DecodingStats(mode=mode, tokens=20, cloud_passes=20, total_s=1.0) for mode in ("cloud", "edge")]
    assert estimated_gain(nobody_drafted) is None and estimated_gain([]) is None
