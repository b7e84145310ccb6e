"""Figures from steps whose times are made up, so that every number can be worked out by hand."""

from __future__ import annotations

import pytest

from edge_drafter import DecodingStats
from vlm_nav_evaluation.figures import (
    median_interval,
    spread,
    summary,
    table8,
)


def stats(seconds: float, tokens: int, rounds: int, hits: int = 0, misses: int = 0, **more: float) -> DecodingStats:
    return DecodingStats(
        tokens=tokens, rounds=rounds, total_s=seconds, first_commit_s=seconds / 2, hits=hits, misses=misses,
        drafted=8, accepted=4, draft_forwards=10, wasted_forwards=5, early_hits={2: hits}, cloud_passes=rounds,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_rates_are_totals_and_times_are_spreads() -> None:
    figures = summary([stats(1.0, 10, 2, 1, 0), stats(3.0, 2, 2, 0, 3)])
    assert figures["total_s"] == {"min": 1.0, "median": 2.0, "max": 3.0}
    assert figures["first_commit_s"] == {"min": 0.5, "median": 1.0, "max": 1.5}
    assert (figures["tau"], figures["hit_rate"], figures["acceptance"]) == (3.0, 0.25, 0.5)
    assert (figures["passes_per_token"], figures["wasted_forwards"]) == (pytest.approx(1 / 3), 0.5)
    assert figures["early_hits"] == {2: 1} and figures["mean_exit"] == 2.0 and figures["miss_rate"] == 0.75
    assert spread([3.0, 1.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 3.0}


def test_table_8_takes_drafting_and_verifying_from_sd_and_the_rest_from_fsd() -> None:
    modes = {
        "cloud": summary([stats(3.0, 12, 12, server_compute_s=12.0)]),
        "sd": summary([stats(2.0, 12, 4, draft_s=0.5, server_compute_s=0.8)]),
        "fsd": summary([stats(1.0, 12, 3, 1, 3, predraft_s=9.0, server_compute_s=9.0)]),
    }
    rows = table8(modes, 4, 0.12)
    assert rows["draft_s"] == pytest.approx(0.05) and rows["gamma_draft_s"] == pytest.approx(0.2)
    assert rows["verify_s"] == pytest.approx(0.2) and rows["c"] == pytest.approx(0.25)
    assert (rows["tau"], rows["miss_rate"], rows["mean_exit"], rows["one_way_s"]) == (4.0, 0.75, 2.0, 0.12)
    assert (rows["ar_to_sd"], rows["sd_to_fsd"], rows["ar_to_fsd"]) == (1.5, 2.0, 3.0)
    alone = table8({"cloud": modes["cloud"]}, None, 0.0)
    assert [name for name, value in alone.items() if value is not None] == ["one_way_s"]


@pytest.mark.parametrize(("count", "lower", "upper"), [(3, 1, 3), (6, 1, 6), (10, 2, 9), (25, 8, 18), (200, 86, 115)])
def test_the_medians_interval_lies_between_the_ranks_of_the_tables(count: int, lower: int, upper: int) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert median_interval(values) == (lower, (count + 1) / 2, upper)
