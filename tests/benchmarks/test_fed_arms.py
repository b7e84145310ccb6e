"""The arms beside a fed head: each at its own best, and the bytes of features on links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fed_arms
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time import Synthetic, tuning

SOURCE = "tokens=10,layers=4,mean_exit=1,acceptance=0.9,fed=0.9+0.8+0.7"


def test_every_mode_that_drafts_is_there_with_both_sources() -> None:
    names = [arm.name for arm in fed_arms.arms(True)]
    assert {"cloud", "server_sd", "full", "full, fed head", "sd", "sd, fed head"} <= set(names)
    assert "cloud, fed head" not in names and not any("fed" in arm.name for arm in fed_arms.arms(False))


def test_an_arm_with_the_head_is_tuned_with_the_head(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[object]()
    run_mode = tuning.run_mode

    def noting(*given: Any, **changes: Any) -> Any:
        seen.append(changes.get("fed"))
        return run_mode(*given, **changes)

    monkeypatch.setattr(tuning, "run_mode", noting)
    recording, timings = Synthetic(tokens=8, fed=(0.9, 0.9)).draw(2), fed_arms.ORIN.with_cost("0")
    assert "ngrams=off" in fed_arms.drafting_of(Arm("sd", "sd", {"fed": True}), recording, timings)
    assert seen and all(seen)
    assert fed_arms.drafting_of(Arm("cloud", "cloud"), recording, timings) == ""


def test_a_slow_link_pays_for_every_byte_of_a_lone_drafts_features() -> None:
    """Stop and wait: a verifier that has seen no pass decodes nothing while features cross, so they take what
    arithmetic gives."""
    recording = Synthetic(tokens=24, fed=(0.9, 0.8)).draw(1)
    arms = Arm("cloud", "cloud"), Arm("sd, fed head", "sd", {"fed": True})
    found = fed_arms.on_links(recording, fed_arms.ORIN.with_cost("0"), *arms, [1.0, 100.0])
    slow, fast = found["1 Mbit/s"], found["100 Mbit/s"]
    assert slow["feature_bytes"] == fast["feature_bytes"] == pytest.approx(255 * (32 + 24), rel=0.05)
    assert slow["features_s"] == pytest.approx(slow["by_hand_s"], rel=0.02)
    assert fast["times_cloud"] > slow["times_cloud"]


def test_the_command_prints_and_saves(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    assert fed_arms.main(f"--synthetic {SOURCE} --steps 2 --mbits 3 --save --times draft_s=0.03".split()) == 0
    printed = capsys.readouterr().out
    assert "draft_s=0.03" in printed and "full, fed head: " in printed and "(wanted: 1.5)" in printed
    saved = json.loads((tmp_path / "fed_arms.json").read_text())
    assert "ngrams=off" in saved["arms"]["full, fed head"]["drafting"]
    assert saved["tuned_on"] == 1 and saved["links"]["3 Mbit/s"]["feature_bytes"] > 32 * 250


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--synthetic tokens=4", "no fed head"),
        ("--synthetic tokens=4,fed=0.9 --steps 1", "one answer"),
        ("--synthetic tokens=4,fed=0.9 --mbits 0", "--mbits 0"),
        ("--synthetic tokens=4,fed=0.9 --times speed=1", "speed"),
        ("--synthetic fed=0.5+0.9", "fed"),
    ],
)
def test_bad_input_is_one_sentence(flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fed_arms.main(flags.split()) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
