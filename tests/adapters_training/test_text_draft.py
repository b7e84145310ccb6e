"""Drafts distilled from tiny language models: they learn, they are served, and a killed run ends as an unbroken one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from adapters_training.__main__ import main
from adapters_training.fed_head.acceptance import ModelDrafter, measure
from adapters_training.frozen_target import training
from adapters_training.packing import IGNORE
from adapters_training.text_draft import TextDraftTrainer
from adapters_training.text_draft import write as write_model
from speculation.vlm.load import load_vlm
from tests.adapters_training.targets import chats, own_answers
from tests.adapters_training.targets import of_a_draft as config
from tests.models import tiny_model

train, prepare = partial(training.train, TextDraftTrainer), partial(training.prepare, TextDraftTrainer)


@pytest.fixture(scope="module")
def answers(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the target's own answers to a few questions, as `answers` writes them."""
    folder = tmp_path_factory.mktemp("answers")
    asked, out = chats(folder / "chat.json"), folder / "answers.jsonl"
    command = ["answers", "--model", str(llama), "--data", str(asked), "--out", str(out), "--max-tokens", "12"]
    assert main(command) == 0
    return out


def test_a_new_draft_learns_what_the_target_answers_and_is_loaded(llama: Path, answers: Path, tmp_path: Path) -> None:
    """On a few answers, which it knows by heart after some steps: most of what it drafts then stands."""
    trainer = TextDraftTrainer(
        prepare(config(llama, answers, tmp_path, steps=120, width=64, heads=4, learning_rate=1e-2))
    )
    target = trainer.prepared.vlm
    batch = own_answers(target, [(each, None) for each in ("find the red ball", "find the blue chair", "stop")], 12)
    found = []
    for steps in (1, 119):
        for _ in range(steps):
            trainer.update(trainer.learn([batch]))
        write_model(trainer.model, target, tmp_path / "draft")
        draft = load_vlm(tmp_path / "draft")
        found.append(measure(target, {"draft": ModelDrafter(target, draft, 3)}, [batch], 3))
    before, after = found
    assert before["own"] == after["own"] == 1.0 and before["tokens"] == after["tokens"] == int(
        (batch.labels != IGNORE).sum()
    )
    assert before["draft"]["right at depth"][0] < 0.3 < 0.7 < after["draft"]["right at depth"][0]
    assert before["draft"]["tokens a verification"] < 1.5 < 2.2 < after["draft"]["tokens a verification"]
    assert draft.tokenizer_fingerprint == target.tokenizer_fingerprint and draft.eos == target.eos
    assert (draft.hidden_size, draft.num_layers) == (64, 2)


def test_a_target_that_sees_is_the_pair_trainers(answers: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sees images; this trains drafts of language models alone"):
        TextDraftTrainer(prepare(config(tiny_model(tmp_path), answers, Path("unused"))))
