"""Success and SPL of episodes that were written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlm_nav_evaluation.closed_loop.episodes import Episode
from vlm_nav_evaluation.closed_loop.scores import (
    figures,
    main_table,
    outcome_table,
    spl,
    wilson,
)

FOUND = Episode(
    "middle", 0, "target", target="red ball", object_class="ball", outcome="found", success=True,
    actions=("forward large", "stop"), path_m=2.0, collisions=1, gap_m=0.4,
)  # fmt: skip


def test_the_interval_is_wilsons() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(0, 60), st.integers(1, 60))
def test_the_interval_holds_the_rate_and_narrows(successes: int, trials: int) -> None:
    successes = min(successes, trials)
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    tighter = wilson(10 * successes, 10 * trials)
    assert tighter[1] - tighter[0] < high - low


def test_spl_weighs_success_by_the_shortest_path() -> None:
    assert spl([(True, 4.0, 2.0), (True, 1.0, 2.0), (False, 2.0, 2.0)]) == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert spl([(True, 0.0, 0.0)]) == 1.0
    assert spl([]) is None


def test_rows_count_success_over_the_rooms_that_the_oracle_solves() -> None:
    lost = replace(FOUND, seed=1, success=False, outcome="ran out of actions")
    best, row = figures([lost, FOUND, replace(FOUND, policy="oracle", path_m=1.5)])
    assert (best["policy"], row["policy"], row["found"], row["episodes"]) == ("oracle", "target", 1, 2)
    assert (row["spl"], row["spl_episodes"]) == (0.75, 1)
    assert row["outcomes"] == {"found": 1, "ran out of actions": 1}
    lines = main_table([best, row]).splitlines()
    assert lines[2].startswith("target") and " 1/2 " in lines[2]
    assert outcome_table([best, row]).splitlines()[2].split()[-2:] == ["0", "1"]
