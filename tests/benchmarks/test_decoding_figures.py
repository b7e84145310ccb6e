from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exactness import first_flip
from benchmarks.latency import report, spread, summary
from benchmarks.setting import questions
from spec_vlm_nav.evaluation.setting import table
from speculation.drafting import DecodingStats, StepResult


def result(seconds: float, tokens: int, rounds: int, hits: int = 0, misses: int = 0) -> StepResult:
    stats = DecodingStats(
        tokens=tokens, rounds=rounds, total_s=seconds, first_commit_s=seconds / 2, hits=hits, misses=misses,
        drafted=8, accepted=4, draft_forwards=10, wasted_forwards=5, early_hits={2: hits}, cloud_passes=rounds,
    )  # fmt: skip
    return StepResult(tuple(range(tokens)), stats)


def test_rates_are_totals_and_times_are_spreads() -> None:
    figures = summary([result(1.0, 10, 2, 1, 0), result(3.0, 2, 2, 0, 3)])
    assert figures["total_s"] == {"min": 1.0, "median": 2.0, "max": 3.0}
    assert figures["first_commit_s"] == {"min": 0.5, "median": 1.0, "max": 1.5}
    assert (figures["tau"], figures["hit_rate"], figures["acceptance"]) == (3.0, 0.25, 0.5)
    assert (figures["passes_per_token"], figures["wasted_forwards"]) == (pytest.approx(1 / 3), 0.5)
    assert figures["early_hits"] == {2: 1}
    assert spread([3.0, 1.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 3.0}


def test_the_report_compares_medians_with_cloud() -> None:
    cloud, fast = summary([result(2.0, 10, 10)]), summary([result(0.5, 10, 4, 3, 1)])
    lines = report({"cloud": cloud, "fsd": fast}).splitlines()
    assert lines[1].split()[4] == "1.00x" and lines[2].split()[:5] == ["fsd", "500", "500", "500", "4.00x"]
    assert report({"fsd": fast}).splitlines()[1].split()[4] == "-"


def test_a_flip_is_the_first_difference_with_the_targets_margin() -> None:
    rows = [np.array([3.0, 1.0, 0.0]), np.array([0.0, 2.0, 1.75])]
    assert first_flip(0, "sd", [0, 1], rows, [0, 1]) is None
    flip = first_flip(4, "sd", [0, 1], rows, [0, 2])
    assert flip is not None and (flip.frame, flip.position, flip.margin) == (4, 1, 0.25)
    short = first_flip(0, "sd", [0, 1], rows, [0])
    assert short is not None and (short.position, short.margin) == (1, float("inf"))


def test_questions_are_the_same_for_the_same_seed() -> None:
    first, again, other = questions("random", 3), questions("random", 3), questions("random", 3, seed=1)
    assert first == again and first != other and len(first) == 3
    assert all(question.jpeg.startswith(b"\xff\xd8") for question in first)
    with pytest.raises(ValueError, match="choose simulation, random"):
        questions("camera", 1)


def test_the_table_is_aligned() -> None:
    assert table(("mode", "ms"), [("a", "1"), ("long", "1000")]) == "mode    ms\na        1\nlong  1000"
