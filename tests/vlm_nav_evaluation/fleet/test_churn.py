"""Robots on replicas that die and drain: nobody is lost, nobody is in two places, and they are spread again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from vlm_nav_evaluation.fleet import churn
from vlm_nav_evaluation.fleet.churn import KINDS, Churn, Setting, figures_of, measure, report
from vlm_nav_evaluation.fleet.plots import churn_plot

FLEETS = {10: {"goodput": 100.0, "violations": 0.0}, 60: {"goodput": 300.0, "violations": 0.2}}


@pytest.mark.parametrize("seed", range(3))
def test_every_robot_is_served_again_by_one_replica(seed: int) -> None:
    setting = Setting(robots=120, replicas=6, seconds=220.0, every_s=12.0, calm_s=100.0, start_s=10.0, seed=seed)
    run = Churn(setting, 60)
    run.run()
    assert sum(run.faults.values()) > 3
    homes = [robot for replica in run._replicas.values() for robot in replica.robots]
    assert len(homes) == len(set(homes)) == len(run.robots) and all(map(run.served, run.robots))
    assert max(len(replica.robots) for replica in run._replicas.values()) <= 1.3 * len(homes) / setting.replicas
    again = Churn(setting, 60)
    again.run()
    assert again.resumed == run.resumed and again.loads == run.loads
    found = figures_of(run, FLEETS)
    assert 0.9 < found["served"] <= 1.0 and found["served_least"] <= found["served"]
    assert found["goodput"] <= 1.0 + 1e-9 and found["late"] >= 0.0


def test_without_harm_robots_are_spread_within_the_bound_and_stay() -> None:
    run = Churn(Setting(robots=100, replicas=4, seconds=60.0, every_s=1e9), 60)
    run.run()
    found = figures_of(run, FLEETS)
    assert found["served"] == 1.0 and found["fullest_most"] <= 1.3 and found["turned_away"] == 0
    assert set(found["resume"]) <= {"moved"}


def test_the_command_reads_the_single_fleets_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "fleets.json"
    saved.write_text(json.dumps({"fleets": FLEETS}), encoding="utf-8")
    monkeypatch.setattr(churn, "FLEETS", saved)
    options = argparse.Namespace(quick=True, churn_robots=60, churn_replicas=3, every_s=[15.0], churn_s=None, seed=0)
    data = measure(options)
    text = report(data)
    assert "60 robots on 3 replicas" in text and any(kind in text for kind in KINDS)
    assert churn_plot(data).axes
    for wrong in ({"churn_replicas": 61}, {"churn_robots": 999}, {"every_s": [0.0]}, {"churn_s": 3.0}):
        with pytest.raises(ValueError, match="--churn-robots|--every-s|--churn-s"):
            measure(argparse.Namespace(**{**vars(options), **wrong}))
    monkeypatch.setattr(churn, "FLEETS", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="run: python -m vlm_nav_evaluation fleet replicas --save"):
        measure(options)
