"""Frames as they are stored, and whose walks they lie on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adapters_training import data
from adapters_training.__main__ import main
from adapters_training.data import DataConfig, convert, make_shard
from adapters_training.records import read_shard, shards
from speculation.language.prompts import MOTIONS
from vlm_nav_simulation.dataset import sample_frames
from vlm_nav_simulation.oracle import Decision, Reason
from vlm_nav_simulation.scene import UNSEEN_SEED, Difficulty


def test_what_no_robot_can_do_is_not_taught() -> None:
    labelled = next(sample_frames(7, Difficulty.EASY, 1))
    left, right = MOTIONS[4], MOTIONS[7]
    fine = replace(labelled.questions[1], done=())
    vain = replace(fine, done=(left, right, left), decision=Decision(right, Reason.RETURN))
    taught = [convert(replace(labelled, questions=asked)).tasks for asked in ((vain, fine), (fine,), (vain,))]
    assert taught[0] == taught[1] and len(taught[0]) == len(taught[2]) == 1


def test_no_shard_reaches_the_rooms_that_are_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["data", "--out", str(out), "--first-seed", str(UNSEEN_SEED - 10), "--scenes", "5"]) == 2
    assert "in whole shards of 25, must stay below 1000000" in capsys.readouterr().err and not out.exists()


def test_a_model_walks_through_all_scenes_of_a_shard(
    tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "SCENES_PER_SHARD", 2)
    monkeypatch.setattr(data, "MAX_TOKENS", 4)
    assert make_shard(DataConfig(out=tmp_path, frames_per_scene=3, walker=tiny_target), 3000) == 6
    (path,) = shards(tmp_path)
    assert path.stem.endswith("-walked")
    first = read_shard(path)[:3]
    assert [len(frame.tasks[-1].done) for frame in first] == [0, 1, 2], "the teacher walks where no action was named"
