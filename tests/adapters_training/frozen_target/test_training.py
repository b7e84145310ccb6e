"""Every training on a frozen target goes on bit for bit, leaves nothing half done and says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from adapters_training.__main__ import main
from adapters_training.exits import ExitTrainer
from adapters_training.fed_head.training import FedTrainer
from adapters_training.frozen_target import training
from adapters_training.frozen_target.training import prepare, train
from adapters_training.settings import write
from adapters_training.text_draft import TextDraftTrainer
from adapters_training.trainer import CHECKPOINT_FILE
from tests.adapters_training.targets import of_a_draft, of_a_head, of_exits, weights

TRAININGS = {"exits": (ExitTrainer, of_exits), "fed-head": (FedTrainer, of_a_head),
             "text-draft": (TextDraftTrainer, of_a_draft)}  # fmt: skip


@pytest.fixture(params=TRAININGS)
def command(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_training_that_is_broken_off_goes_on_bit_for_bit(
    command: str, llama: Path, chat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, config = TRAININGS[command]
    train(kind, config(llama, chat, tmp_path / "whole", steps=9, schedule="cosine"))
    settings = config(llama, chat, tmp_path / "broken", steps=9, schedule="cosine", checkpoint_seconds=0.0)
    update, seen = kind.update, list[int]()

    def fail(self: Any, done: Any) -> None:
        seen.append(self.step)
        if self.step == 5 and len(seen) == 6:
            raise KeyboardInterrupt
        update(self, done)

    monkeypatch.setattr(kind, "update", fail)
    with pytest.raises(KeyboardInterrupt):
        train(kind, settings)
    train(kind, settings)
    assert seen == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]
    whole, broken = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert whole.keys() == broken.keys() and all(torch.equal(whole[name], broken[name]) for name in whole)
    assert not (tmp_path / "broken" / CHECKPOINT_FILE).exists()


def test_a_finished_run_is_not_done_again(
    command: str, llama: Path, chat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, config = TRAININGS[command]
    out, path = tmp_path / "out", tmp_path / "settings.yaml"
    write(config(llama, chat, out, steps=3), path)
    words = [command, "--config", str(path)]
    assert main(words) == 0
    assert "held-out tokens" in capsys.readouterr().out
    assert (out / "config.yaml").exists() and list((out / "tensorboard").iterdir())
    assert main(words) == 0
    assert f"holds {kind.made} of these settings already" in capsys.readouterr().out
    assert main([*words, "--steps", "2"]) == 2
    assert f"holds {kind.made} of other settings; choose another folder" in capsys.readouterr().err


def test_a_checkpoint_of_other_settings_or_none_is_refused(
    command: str, llama: Path, chat: Path, tmp_path: Path
) -> None:
    kind, config = TRAININGS[command]
    prepared = prepare(kind, config(llama, chat, tmp_path, learning_rate=0.01))
    trainer = kind(prepared)
    trainer.save()
    with pytest.raises(ValueError, match=r"other settings \(learning_rate: 0.01 there, 0.02 now\)"):
        kind(replace(prepared, config=msgspec.structs.replace(prepared.config, learning_rate=0.02)))
    trainer.checkpoint.write_bytes(b"half a checkpoint")
    with pytest.raises(ValueError, match="is no checkpoint .* delete it to begin anew"):
        kind(prepared)


def test_too_little_memory_is_known_before_the_weights_are_read(
    command: str, llama: Path, chat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, config = TRAININGS[command]
    monkeypatch.setattr(training, "available_bytes", lambda device: 1e6)
    monkeypatch.setattr(training, "load_vlm", None)
    with pytest.raises(ValueError, match=f"too little memory: training {kind.made} of .* has 1.0 MB free"):
        prepare(kind, config(llama, chat, tmp_path))


@pytest.mark.parametrize(
    ("command", "changes", "sentence"),
    [
        ("exits", {"layers": [0, 3]}, "--layers 0 3: give distinct layers of 0 to 2, ascending"),
        ("exits", {"rank": 64}, "--rank 64 is no bottleneck in a target of width 64"),
        ("fed-head", {"layers": [0, 4]}, "--layers 0 4: give at most 8 distinct layers of 0 to 3, ascending"),
        ("fed-head", {"layers": [2, 1]}, "--layers 2 1: give at most 8"),
        ("fed-head", {"width": 30, "heads": 4}, "width 30 is no multiple of two numbers for each of 4 heads"),
        ("text-draft", {"width": 33}, "--width 33 is no even number of channels for each of --heads 2"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(
    command: str, changes: dict[str, Any], sentence: str, llama: Path, chat: Path, tmp_path: Path
) -> None:
    kind, config = TRAININGS[command]
    with pytest.raises(ValueError, match=sentence):
        kind(prepare(kind, config(llama, chat, tmp_path, **changes)))
