"""Success and SPL of episodes that were written by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.sighting import RANGE_SHARE, sighting
from vlm_nav_evaluation.closed_loop.episodes import Episode, Placed
from vlm_nav_evaluation.closed_loop.scores import (
    camera_tables,
    figures,
    main_table,
    outcome_table,
    placed,
    wilson,
)
from vlm_nav_simulation.geometry import CameraMount, Pose

FOUND = Episode(
    "middle", 0, "target", target="red ball", object_class="ball", outcome="found", success=True,
    actions=("forward large", "stop"), path_m=2.0, collisions=1, gap_m=0.4,
)  # fmt: skip


@given(st.integers(0, 60), st.integers(1, 60))
def test_wilsons_interval_holds_the_rate_and_narrows(successes: int, trials: int) -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4) and wilson(0, 0) == (0.0, 1.0)
    successes = min(successes, trials)
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    tighter = wilson(10 * successes, 10 * trials)
    assert tighter[1] - tighter[0] < high - low


def test_rows_count_success_over_the_rooms_that_the_oracle_solves() -> None:
    lost = replace(FOUND, seed=1, success=False, outcome="ran out of actions")
    best, row = figures([lost, FOUND, replace(FOUND, policy="oracle", path_m=1.5)])
    assert (best["policy"], row["policy"], row["found"], row["episodes"]) == ("oracle", "target", 1, 2)
    assert (row["spl"], row["spl_episodes"]) == (0.75, 1)
    assert row["outcomes"] == {"found": 1, "ran out of actions": 1}
    lines = main_table([best, row]).splitlines()
    assert lines[2].startswith("target") and " 1/2 " in lines[2]
    assert outcome_table([best, row]).splitlines()[2].split()[-2:] == ["0", "1"]


def test_what_is_found_stands_by_height_and_pitch() -> None:
    rows = [
        {**row, **mount._asdict(), "crop": "none"}
        for mount in (CameraMount(height, pitch) for height in (0.6, 0.25) for pitch in (10.0, -10.0))
        for row in figures([replace(FOUND, success=mount.pitch_deg > 0.0)])
    ]
    (text,) = camera_tables(rows)
    title, header, *lines = text.splitlines()
    assert title == "middle, target, 90 degrees wide, crop none: found"
    assert [header.split()[-2:], *(line.split() for line in lines)] == [
        ["-10", "10"], ["0.25", "0/1", "1/1"], ["0.6", "0/1", "1/1"],
    ]  # fmt: skip


def test_places_are_scored_along_and_across_the_line_of_sight() -> None:
    pose, metres = Pose(2.0, 1.0, math.pi / 2), 1.5
    named = sighting("The red ball is straight ahead, about 2 m away.", "red", "ball", PlanarPose(*pose))
    assert named is not None
    far = Placed.of(named, 0.0, metres, pose)
    assert far.along == pytest.approx(0.5, abs=0.01) and far.across == pytest.approx(0.0, abs=0.01)
    assert far.deviations == pytest.approx(0.5 / (RANGE_SHARE * 2.0), abs=0.02)
    aside = Placed.of(named, math.radians(-10.0), 2.0, pose)
    assert aside.across == pytest.approx(2.0 * math.sin(math.radians(10.0)), abs=0.01), "named too far to the left"
    bands = placed([replace(FOUND, sightings=(far, aside))])
    assert {name: row["places"] for name, row in bands.items()} == {"all": 2, "under 2 m": 1, "under 3 m": 1}
    assert bands["under 2 m"]["along_m"] == far.along and bands["under 2 m"]["in_95"] == 1.0
    assert bands["under 3 m"]["in_68"] == 0.0 and placed([FOUND]) == {}
