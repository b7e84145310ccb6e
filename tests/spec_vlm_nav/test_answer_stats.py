"""How answers were decoded, as `/diagnostics` shows it."""

from __future__ import annotations

from edge_drafter.stats import DecodingStats
from spec_vlm_nav.answer_stats import KEPT, AnswerStats


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
