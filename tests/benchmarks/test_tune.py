"""The command that tunes every mode at a setting's times."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import tune
from benchmarks.recordings import changed
from edge_drafter.settings import read_changes
from vlm_nav_evaluation import results
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time import Recording, figures_of, load_timings, run_arms


def test_a_setting_has_a_table_for_each_round_trip_and_a_result(
    few: None, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--setting go2 --rtt-ms 40,240 --synthetic tokens=12 --steps 4 --modes cloud,sd,full --save --name trial"
    assert tune.main(flags.split()) == 0
    printed = capsys.readouterr().out
    assert "3 answers, tuned on 1 others" in printed and printed.count("| `full`, n-grams off") == 2
    assert printed.count("| `full, server draft`, n-grams off") == 2
    saved = json.loads((kept / "tuned_trial.json").read_text())
    assert [each["rtt_s"] for each in saved["round_trips"]] == [0.04, 0.24] and saved["tuned_on"] == 1
    for each in saved["round_trips"]:
        assert set(each["drafting"]) == {"sd, tuned", "full, tuned", "full, n-grams off, tuned"}
        for arm, text in each["drafting"].items():
            assert read_changes(text) is not None and each["modes"][arm]["steps"] == 3
    assert saved["pair"] == {} and saved["commit"] and saved["machine"], "no model answered"


@pytest.mark.parametrize("name", ["tuned_go2", "tuned_fast_server"])
def test_this_code_is_as_fast_as_the_saved_figures(name: str) -> None:
    """`full` without earlier answers as shipped, and `cloud`, at the last round trip, within 2 %."""
    saved = json.loads((results.RESULTS / f"{name}.json").read_text())
    recording = Recording.load(results.RESULTS / f"{name}.npz")
    assert {model: recording.notes[model] for model in ("target", "draft")}.items() <= saved["source"].items()
    entry = saved["round_trips"][-1]
    timings = changed(load_timings("go2", saved["settings"]["cost"]), saved["settings"]["times"], "--times")
    timings = replace(timings.with_server_draft(), one_way_s=entry["rtt_s"] / 2.0)
    assert asdict(timings)["cost"] == saved["timings"]["cost"]
    arms = [Arm("cloud", "cloud"), Arm("full, n-grams off", "full", {"text": "ngrams=off"})]
    for arm, figures in figures_of(run_arms(arms, recording, timings), timings).items():
        saved_s = entry["modes"][arm]["total_s"]
        assert figures["total_s"]["median"] <= 1.02 * saved_s["median"], arm
