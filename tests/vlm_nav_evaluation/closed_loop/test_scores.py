"""Success, SPL and time of episodes that were written by hand."""

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
    different_walks,
    figures,
    first_links,
    main_table,
    outcome_table,
    placed,
    spl,
    wilson,
)
from vlm_nav_simulation.geometry import CameraMount, Pose

FOUND = Episode(
    "middle", 0, "cloud", 0.0, target="red ball", object_class="ball", outcome="found", success=True,
    actions=("forward large", "stop"), path_m=2.0, collisions=1, gap_m=0.4, moving_s=4.0, standing_s=6.0,
    answers_s=(2.0, 3.0), tokens=20, cloud_passes=20,
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


def test_rows_hold_the_time_where_it_was_spent() -> None:
    lost = replace(FOUND, seed=1, success=False, outcome="ran out of actions", standing_s=10.0, moving_s=0.0)
    oracle = replace(FOUND, policy="oracle", rtt_ms=None, path_m=1.5, answers_s=(), standing_s=0.3, tokens=0)
    best, row = figures([lost, FOUND, oracle])
    assert (row["policy"], row["rtt_ms"], row["found"], row["episodes"]) == ("cloud", 0.0, 1, 2)
    assert (row["time_to_goal_s"], row["standing_to_goal_s"], row["standing_share"]) == (10.0, 6.0, 16.0 / 20.0)
    assert (row["spl"], row["spl_episodes"]) == (0.75, 1)
    assert (row["answer_s"], row["tokens_per_answer"], row["passes_per_token"]) == (2.5, 10.0, 1.0)
    assert row["outcomes"] == {"found": 1, "ran out of actions": 1}
    assert best["policy"] == "oracle" and best["answer_s"] is None and best["passes_per_token"] is None
    lines = main_table([best, row]).splitlines()
    assert lines[2].startswith("cloud, 0 ms") and " 1/2 " in lines[2] and " 80% " in lines[2]
    assert outcome_table([best, row]).splitlines()[2].split()[-2:] == ["0", "1"]


def test_the_link_changes_no_walk_so_success_is_counted_once() -> None:
    rows = figures([FOUND, replace(FOUND, rtt_ms=40.0), replace(FOUND, policy="sd")])
    assert [(row["policy"], row["rtt_ms"]) for row in rows] == [("cloud", 0.0), ("sd", 0.0), ("cloud", 40.0)]
    assert [(row["policy"], row["rtt_ms"]) for row in first_links(rows)] == [("cloud", 0.0), ("sd", 0.0)]


def test_what_is_found_stands_by_height_and_pitch() -> None:
    rows = [
        {**row, **mount._asdict(), "crop": "none"}
        for mount in (CameraMount(height, pitch) for height in (0.6, 0.25) for pitch in (10.0, -10.0))
        for row in figures([replace(FOUND, success=mount.pitch_deg > 0.0)])
    ]
    (text,) = camera_tables(rows)
    title, header, *lines = text.splitlines()
    assert title == "middle, cloud, 0 ms, 90 degrees wide, crop none: found"
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


def test_walks_that_differ_between_modes_of_one_target_are_counted() -> None:
    other = replace(FOUND, policy="fsd", actions=("turn left small",))
    alone = replace(FOUND, seed=5)
    edge = replace(FOUND, policy="edge", rtt_ms=None, actions=())
    assert different_walks([FOUND, replace(FOUND, policy="sd"), alone, edge]) == (0, 1)
    assert different_walks([FOUND, other]) == (1, 1)
