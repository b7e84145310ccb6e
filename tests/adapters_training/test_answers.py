"""Answers decoded side by side are those of one session, and a packed batch carries them as they were asked."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from adapters_training import wording
from adapters_training.answers import MAX_TOKENS, answer_all
from adapters_training.packing import IGNORE, Packer
from adapters_training.shapes import known_objects
from speculation.prompts import ResponseOrder, parse_answer
from speculation.vlm.cache import KVCache
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from tests.adapters_training.frames import make_frame
from tests.models import tiny_model


def test_a_ragged_batch_answers_as_one_session_does(tmp_path: Path) -> None:
    vlm = load_vlm(tiny_model(tmp_path), dtype="float64")
    rng = np.random.default_rng(3)
    questions = [(f"find the red ball {'now ' * n}", make_frame(rng).jpeg) for n in range(4)]
    session = VlmSession(vlm, 256)
    alone = [session.answer(prompt, jpeg, 12) for prompt, jpeg in questions]
    assert answer_all(vlm, KVCache(vlm, 4, 256), questions, 12) == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize("order", ResponseOrder)
def test_a_frame_with_answers_is_packed_as_it_was_asked(tmp_path: Path, order: ResponseOrder) -> None:
    vlm = load_vlm(tiny_model(tmp_path))
    frame, rng = make_frame(np.random.default_rng(0)), random.Random(1)
    task = frame.tasks[0]
    words = wording.answer(frame, task, rng, order)
    assert len(vlm.tokenizer(words)["input_ids"]) < MAX_TOKENS
    answered = replace(task, prompt="go and look", answer=words)
    frame = replace(frame, tasks=[answered, frame.tasks[1]])
    batch = Packer(vlm.tokenizer, known_objects(), questions=3).batch([frame], random.Random(2))
    labels = batch.labels[0]
    assert vlm.tokenizer.decode(labels[labels != IGNORE]) == words + "<|im_end|>"
    assert "go and look" in vlm.tokenizer.decode(batch.ids[0])
    heavy = vlm.tokenizer.decode(labels[batch.weights[0] > 1]).strip()
    action = parse_answer(words).action
    assert action is not None and heavy == action.text
