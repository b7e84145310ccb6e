"""How answers were decoded: the line of `/diagnostics`, and the sums over all."""

from __future__ import annotations

from edge_drafter.stats import DecodingStats
from spec_vlm_nav.answer_stats import KEPT, AnswerStats


def test_figures_are_over_the_latest_answers_only() -> None:
    answers = AnswerStats()
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


def test_the_total_is_over_all_answers() -> None:
    answers = AnswerStats()
    assert answers.total()["answers"] == 0 and answers.total()["acceptance"] is None
    for number in range(KEPT + 10):
        answers.note(DecodingStats("full", tokens=3, drafted=4, accepted=3, early_hits={4: 1}, estimated_rtt_s=number))
    total = answers.total()
    assert (total["answers"], total["tokens"], total["acceptance"]) == (KEPT + 10, 3 * (KEPT + 10), 0.75)
    assert total["early_hits"] == {"4": KEPT + 10} and total["estimated_rtt_s"] == KEPT + 9
    assert not {"mode", "first_commit_s", "gamma"} & total.keys(), "they are of one answer"
