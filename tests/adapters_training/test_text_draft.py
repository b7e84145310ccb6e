"""Drafts distilled from tiny language models: they learn, they are served, and a killed run ends as an unbroken one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters_training.__main__ import main
from adapters_training.encoding import Encoded
from adapters_training.fed_head.acceptance import ModelDrafter, measure
from adapters_training.frozen_target import preparation, training
from adapters_training.frozen_target.batches import Batch, collate
from adapters_training.packing import IGNORE
from adapters_training.settings import make
from adapters_training.text_draft import TextDraftConfig, TextDraftTrainer
from adapters_training.text_draft import write as write_model
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.positions import text_positions
from speculation.vlm.session import VlmSession
from tests.adapters_training.targets import chats
from tests.models import tiny_model

train, prepare = partial(training.train, TextDraftTrainer), partial(preparation.prepare, TextDraftTrainer)


@pytest.fixture(scope="module")
def answers(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the target's own answers to a few questions, as `answers` writes them."""
    folder = tmp_path_factory.mktemp("answers")
    asked, out = chats(folder / "chat.json"), folder / "answers.jsonl"
    command = ["answers", "--model", str(llama), "--data", str(asked), "--out", str(out), "--max-tokens", "12"]
    assert main(command) == 0
    return out


def config(target: Path, data: Path, out: Path, **changes: Any) -> TextDraftConfig:
    """Return settings of a short distillation on the CPU."""
    values = {
        "target": str(target), "data": [str(data)], "out": str(out), "steps": 8, "batch": 4, "context": 96,
        "learning_rate": 5e-3, "device": "cpu", "held_out_samples": 8, "seed": 5, "width": 32, "depth": 2, "heads": 2,
        "gamma": 3, "head_tokens": 7,
    }  # fmt: skip
    return make(TextDraftConfig, values | changes)


def own_answers(vlm: Vlm, questions: Sequence[str], count: int) -> Batch:
    """Return the target's own answers as a batch of its very tokens, which text does not always keep."""
    rows = []
    for question in questions:
        ids = vlm.processor.encode_text(question)
        answer = [token for token, _ in VlmSession(vlm, 128).greedy(question, None, count)]
        whole = np.concatenate([ids, answer]).astype(np.int64)
        labels = np.full(len(whole), IGNORE)
        labels[len(ids) - 1 : -1] = answer
        rows.append(Encoded(whole, labels, text_positions(len(whole)), None, None, False))
    return collate(rows, 0)


def test_a_new_draft_learns_what_the_target_answers_and_is_loaded(llama: Path, answers: Path, tmp_path: Path) -> None:
    """On a few answers, which it knows by heart after some steps: most of what it drafts then stands."""
    trainer = TextDraftTrainer(
        prepare(config(llama, answers, tmp_path, steps=120, width=64, heads=4, learning_rate=1e-2))
    )
    target, question = trainer.prepared.vlm, "find the red ball"
    batch = own_answers(target, [question, "find the blue chair", "stop"], 12)
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
