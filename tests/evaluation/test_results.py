from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from edge_drafter import DecodingStats
from evaluation.results import STEPS, Arm, FrameKey, Results, Step, arms_of

SETTINGS = {"modes": ["cloud", "fsd"], "gamma": 4, "limit": 0}


def step(index: int, mode: str = "cloud", rtt_ms: float = 0.0) -> Step:
    stats = DecodingStats(mode=mode, tokens=2, rounds=1, early_hits={1: 2, 5: 1}, total_s=0.5, first_commit_s=0.2)
    key, arm = FrameKey("bag", index), Arm(mode, rtt_ms)
    return Step(key, arm, 10**18 + index, "ab", "find it", "find it", (5, 7), "Action: stop", "stop", "", -1.0, stats)


def test_a_step_survives_its_line() -> None:
    for one in (step(3), step(0, "fsd", 40.0)):
        assert Step.from_dict(json.loads(json.dumps(asdict(one)))) == one


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    first = Results(tmp_path, SETTINGS)
    for one in (step(1), step(0), step(0, "fsd")):
        first.add(one)
    file = tmp_path / f"{STEPS}.jsonl"
    file.write_text(file.read_text() + json.dumps(asdict(step(2)))[:100])
    again = Results(tmp_path, SETTINGS)
    assert len(again) == 3 and (FrameKey("bag", 0), Arm("fsd")) in again
    assert (FrameKey("bag", 2), Arm("cloud")) not in again
    again.add(step(2))
    assert again.steps() == [step(0), step(0, "fsd"), step(1), step(2)]


def test_other_settings_are_refused_by_name_or_begin_anew(tmp_path: Path) -> None:
    first = Results(tmp_path, SETTINGS)
    first.add(step(1))
    with pytest.raises(ValueError, match="gamma was 4 and is 6; give another --out, or throw"):
        Results(tmp_path, {**SETTINGS, "gamma": 6})
    with pytest.raises(ValueError, match="topic was None and is /a"):
        Results(tmp_path, {**SETTINGS, "topic": "/a"})
    anew = Results(tmp_path, {**SETTINGS, "gamma": 6}, restart=True)
    assert len(anew) == 0 and anew.steps() == []


def test_a_line_that_is_no_step_is_named(tmp_path: Path) -> None:
    Results(tmp_path, SETTINGS).add(step(1))
    with (tmp_path / f"{STEPS}.jsonl").open("a") as file:
        file.write(json.dumps({"frame": 1}) + "\n")
    with pytest.raises(ValueError, match="line 2 is no step"):
        Results(tmp_path, SETTINGS)


def test_every_mode_meets_every_round_trip_but_edge_has_no_link() -> None:
    arms = arms_of(["edge", "fsd"], [0.0, 40.0])
    assert [arm.label for arm in arms] == ["edge", "fsd", "fsd +40 ms"]
