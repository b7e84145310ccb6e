"""The command that tunes every mode at a setting's times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tune
from edge_drafter.config import read_changes


def test_a_setting_has_a_table_for_each_round_trip_and_a_result(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr("evaluation.plots.KEPT", tmp_path)
    flags = "--setting go2 --rtt-ms 40,240 --synthetic tokens=12 --steps 4 --modes cloud,sd,full --save --name trial"
    assert tune.main(flags.split()) == 0
    printed = capsys.readouterr().out
    assert "3 answers, tuned on 1 others" in printed and printed.count("| `full`, n-grams off") == 2
    saved = json.loads((tmp_path / "tuned_trial.json").read_text())
    assert [each["rtt_s"] for each in saved["round_trips"]] == [0.04, 0.24] and saved["tuned_on"] == 1
    for each in saved["round_trips"]:
        assert set(each["drafting"]) == {"sd, tuned", "full, tuned", "full, n-grams off, tuned"}
        for arm, text in each["drafting"].items():
            assert read_changes(text) is not None and each["modes"][arm]["steps"] == 3
    assert "machine" not in saved, "virtual times depend on none"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--setting orin", "orin"),
        ("--times speed=2", "speed"),
        ("--synthetic tokens=12 --steps 1", "two at least"),
        ("--steps 0", "--steps 0"),
        ("--recording config/links.json", "config/links.json"),
    ],
)
def test_bad_input_is_one_sentence(flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(flags.split()) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
