"""Trainings of the pair on a model small enough for seconds: resume, export, evaluation, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters_training import pair
from adapters_training.__main__ import main
from adapters_training.evaluate import evaluate
from adapters_training.packing import Batch
from adapters_training.records import write_shard
from adapters_training.shapes import known_objects
from adapters_training.trainer import StepLosses
from speculation.language.prompts import ResponseOrder
from speculation.vlm.load import load_vlm
from tests.adapters_training.frames import TINY, make_frame


@pytest.fixture(scope="module", autouse=True)
def tiny_shape() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "DRAFT", TINY)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, processor_folder: Path) -> Path:
    folder = Path(tmp_path_factory.mktemp("training"))
    rng = np.random.default_rng(0)
    (folder / "processor").symlink_to(processor_folder)
    for name in ("data", "held_out"):
        (folder / name).mkdir()
        frames = [make_frame(rng, side) for side in ("left", "ahead", "right", "slightly left")] * 2
        write_shard(folder / name / "seeds-0000000-0000025.msgpack", frames)
    return folder


def config(folder: Path, out: str, **changes: Any) -> pair.PairConfig:
    plain: dict[str, Any] = {"steps": 6, "batch_frames": 2, "questions": 2, "vision_share": 0.2, "ground_share": 0.7}
    places = {"data": (str(folder / "data"),), "processor": str(folder / "processor"), "out": str(folder / out)}
    return pair.PairConfig(**{"role": "draft", **places, **plain, **changes})


def trainer(folder: Path, out: str, **changes: Any) -> pair.PairTrainer:
    return pair.PairTrainer(config(folder, out, **changes), known_objects())


def weights(trained: pair.PairTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for module in (trained.model, trained.probes) for p in module.parameters()])


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    trained = trainer(folder, "run")
    trained.train()
    trained.export(folder / "model")
    return folder / "model"


def test_a_killed_training_ends_with_the_weights_of_an_unbroken_one(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = trainer(folder, "broken")
    learn = broken.learn

    def failing(batches: Sequence[Batch]) -> StepLosses:
        if broken.step == 2:
            broken.save()
        if broken.step == 3:
            raise KeyboardInterrupt
        return learn(batches)

    monkeypatch.setattr(broken, "learn", failing)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    resumed = trainer(folder, "broken")
    assert resumed.step == 2
    resumed.train()
    unbroken = trainer(folder, "run")
    assert unbroken.step == 6, "the finished run's own checkpoint"
    assert torch.equal(weights(resumed), weights(unbroken))


def test_a_checkpoint_of_other_settings_is_refused(folder: Path, model: Path) -> None:
    with pytest.raises(ValueError, match=r"is of other settings \(learning_rate: 0.001 there, 0.0001 now\)"):
        trainer(folder, "run", learning_rate=1e-4)
    with pytest.raises(ValueError, match="another shape or tokenizer"):
        trainer(folder, "other", role="target", start_from=str(model))
    (folder / "no-checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is no checkpoint"):
        trainer(folder, "other", start_from=str(folder / "no-checkpoint.pt"))


def test_the_export_loads_and_answers(folder: Path, model: Path) -> None:
    vlm = load_vlm(model)
    assert vlm.num_layers == TINY.layers
    score = evaluate(vlm, folder / "held_out", 2, order=ResponseOrder.ACTION_FIRST)
    assert score.answers == 2


def test_a_student_learns_from_its_teacher(folder: Path, model: Path) -> None:
    student = trainer(folder, "student", teacher=str(model), start_from=str(model), vision_share=0.0, steps=2)
    before = weights(student)
    assert not pair.looking(student.config, 0)
    student.train()
    assert not torch.equal(before, weights(student))


@pytest.mark.parametrize(
    ("harm", "at", "options", "sentence", "kept"),
    [
        (lambda weight: weight.mul_(100), 2, {"steps": 4}, "is worse than what it began with", 4),
        (
            lambda weight: weight.fill_(torch.nan),
            3,
            {"steps": 6, "checkpoint-seconds": 0},
            "the loss is nan at step 4: the training has diverged",
            3,
        ),
    ],
)
def test_a_training_that_ruins_the_model_fails_and_exports_nothing(
    harm: Callable[[torch.Tensor], object], at: int, options: dict[str, object], sentence: str, kept: int,
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its last good checkpoint stays; where only the end was bad, that is remembered."""
    learn = pair.PairTrainer.learn

    def ruinous(self: pair.PairTrainer, batches: Sequence[Batch]) -> StepLosses:
        if self.step == at:
            with torch.no_grad():
                harm(self.model.model.language_model.embed_tokens.weight)
        return learn(self, batches)

    monkeypatch.setattr(pair.PairTrainer, "learn", ruinous)
    out = folder / f"ruined-at-{at}"
    values = {"role": "draft", "data": folder / "data", "processor": folder / "processor", "out": out,
              "export": folder / "ruined-model", "batch-frames": 2, "questions": 2, "vision-share": 0,
              "ground-share": 0, "learning-rate": 1e-5, **options}  # fmt: skip
    words = ["pair", *(text for name, value in values.items() for text in (f"--{name}", str(value)))]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "adapters_training pair: the loss " in said and sentence in said
    assert "give a lower --learning-rate than 1e-05, and another --out" in said
    assert torch.load(out / "checkpoint.pt", weights_only=True)["step"] == kept
    if kept == options["steps"]:
        assert main(words) == 1, "it is remembered"
    assert not (folder / "ruined-model").exists()


def test_a_start_may_be_the_mean_of_two_models(folder: Path, model: Path) -> None:
    trained = trainer(folder, "another", start_from=str(model), steps=3, seed=5)
    trained.train()
    mean = trainer(folder, "mean", start_from=str(model), average_with=str(trained.checkpoint)).model.state_dict()
    one = trainer(folder, "one", start_from=str(model)).model.state_dict()
    for name, other in trained.model.state_dict().items():
        torch.testing.assert_close(mean[name], (one[name] + other) / 2)
    assert any(not torch.equal(mean[name], one[name]) for name in mean)
