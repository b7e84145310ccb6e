"""The command `acting`: its rows, and one room walked by the shipped pair."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.closed_loop.acting import figures, outages
from vlm_nav_evaluation.closed_loop.virtual_robot import ActingEpisode


def test_standing_is_compared_in_the_same_rooms() -> None:
    def episode(seed: int, behaviour: str, standing: float) -> ActingEpisode:
        return ActingEpisode(
            behaviour=behaviour, mode="full", rtt_ms=0.0, seed=seed, success=True, outcome="found", actions=3,
            total_s=standing + 5.0, moving_s=5.0, path_m=1.0, first_motion_s=[0.2], questions=4, used_ahead=1,
        )  # fmt: skip

    rows = figures([episode(1, "wait", 10.0), episode(1, "ahead", 2.0), episode(2, "ahead", 50.0)], {1: 1.0})
    assert [row["behaviour"] for row in rows] == ["wait", "ahead"]
    assert rows[0]["standing_share"] == 1.0 and rows[1]["standing_share"] == pytest.approx(0.2)
    assert rows[1]["found"] == 2 and rows[1]["spl"] == 1.0


@pytest.mark.parametrize("text", ["", "10", "10/5", "x/3", "-1/5", "1/400"])
def test_what_is_no_outage_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        outages(text)


def test_one_command_walks_in_a_dead_link_with_the_draft_model_and_without(tmp_path: Path) -> None:
    """The link carries 1.5 s and is dead for 9: the target's first answer comes before that."""
    models = [f"--{name}-model={PROJECT / 'models' / name}" for name in ("target", "draft")]
    flags = "--seeds 20000 --modes full --rtt-ms 40 --max-actions 4 --behaviours ahead,hold"
    assert main(["acting", *models, *flags.split(), "--dead", "9/12", "--out", str(tmp_path)]) == 0
    episodes = [json.loads(line) for line in (tmp_path / "acting.jsonl").read_text().splitlines()]
    drives, holds = (next(each for each in episodes if each["behaviour"] == name) for name in ("ahead", "hold"))
    assert drives["dead"] == holds["dead"] == "9/12" and drives["actions"] == holds["actions"] == 4
    assert drives["total_s"] < 9.0 < holds["total_s"], "only a verifier moves the one that holds"
    rows = json.loads((tmp_path / "acting_dead_link.json").read_text())["figures"]
    assert [row["behaviour"] for row in rows] == ["ahead", "hold"]
