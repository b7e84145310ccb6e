"""The whole training path on a model small enough for seconds: pair, resume, export, evaluation."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from adapters_training import pair
from adapters_training.__main__ import BLOCKERS, main, vocabulary
from adapters_training.evaluate import Score, claimed_side, evaluate, judge
from adapters_training.records import Task, write_shard
from adapters_training.shapes import Shape, write_processor
from speculation.vlm.load import load_vlm
from tests.adapters_training.frames import make_frame

TINY = Shape(hidden=48, layers=3, heads=2, kv_heads=2, mlp=64, vision=32, vision_layers=1, vision_heads=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("training"))
    rng = np.random.default_rng(0)
    write_processor(folder / "processor", vocabulary(), BLOCKERS)
    for name in ("data", "held_out"):
        (folder / name).mkdir()
        frames = [make_frame(rng, side) for side in ("left", "ahead", "right", "slightly left")] * 2
        write_shard(folder / name / "seeds-0000000-0000025.msgpack", frames)
    return folder


def train(folder: Path, minutes: float) -> pair.PairTrainer:
    config = pair.PairConfig(
        "draft", str(folder / "data"), str(folder / "run"), minutes, batch_frames=2, questions=2, vision_share=0.2
    )
    trainer = pair.PairTrainer(config, folder / "processor", vocabulary())
    trainer.train()
    return trainer


def test_a_killed_training_goes_on_and_its_export_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "DRAFT", TINY)
    first = train(folder, 0.02)
    resumed = train(folder, 0.04)
    assert resumed.progress.step > first.progress.step > 0
    assert resumed.progress.seconds >= 0.04 * 60
    resumed.export(folder / "model")
    vlm = load_vlm(folder / "model")
    assert vlm.num_layers == TINY.layers
    score = evaluate(vlm, folder / "held_out", 2)
    assert score.answers == 2


def test_teacher_and_student_share_a_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "DRAFT", TINY)
    if not (folder / "model").exists():
        train(folder, 0.02).export(folder / "model")
    config = pair.PairConfig(
        "draft", str(folder / "data"), str(folder / "student"), 0.01, batch_frames=2, questions=2,
        teacher=str(folder / "model"), start=str(folder / "run" / "checkpoint.pt"), vision_share=0.0,
    )  # fmt: skip
    trainer = pair.PairTrainer(config, folder / "processor", vocabulary())
    before = torch.cat([p.flatten() for p in trainer.model.parameters()]).clone()
    assert not trainer.looking
    trainer.train()
    after = torch.cat([p.flatten() for p in trainer.model.parameters()])
    assert not torch.equal(before, after)


def test_the_schedule_warms_up_and_ends_low() -> None:
    config = pair.PairConfig("draft", "", "", 1.0, learning_rate=1.0)
    begin = pair.learning_rate(config, pair.Progress(0, 0.0))
    middle = pair.learning_rate(config, pair.Progress(500, 30.0))
    end = pair.learning_rate(dataclasses.replace(config), pair.Progress(1000, 60.0))
    assert begin == pytest.approx(0.01)
    assert end == pytest.approx(0.02)
    assert begin < middle > end


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ("I see the red ball on the left, about 1.5 m away. The red cone on the right is not it.", "left"),
        ("The red ball is a little to the right, about 2 m away.", "slightly right"),
        ("The red ball is not in view. I just see the red box to my left.", None),
        ("I do not see the red ball.", None),
    ],
)
def test_the_side_that_an_answer_claims(text: str, side: str | None) -> None:
    assert claimed_side(text, "red ball") == side


def test_scores_ask_for_object_side_and_action() -> None:
    frame = make_frame(np.random.default_rng(0), "left", "turn left medium")
    seen, absent = frame.tasks
    score = Score()
    judge(score, seen, "I see the red ball on the left, about 1.5 m away.\nAction: turn left small")
    judge(score, seen, "I see the red ball on the right, about 1.5 m away.\nAction: turn right small")
    judge(score, absent, "There is no blue ball here. I look around.\nAction: turn left large")
    judge(score, Task("red", "ball", seen.seen, "stop", "reached"), "I see the red ball on the left.\nAction: stop")
    rates = score.rates()
    assert rates["grounded"] == 0.75
    assert rates["side"] == pytest.approx(2 / 3)
    assert rates["action kind"] == 0.75
    assert rates["action exact"] == 0.5
    assert rates["stop precision"] == rates["stop recall"] == 1.0


def test_no_data_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([
        "pair", "draft", "--data", str(folder / "nothing"), "--processor", str(folder / "processor"),
        "--out", str(folder / "none"),
    ])  # fmt: skip
    assert status == 2
    assert "run 'python -m adapters_training data' first" in capsys.readouterr().err
