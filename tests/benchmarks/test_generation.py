"""transformers as a peer: the same inputs, the target's own answers, a draft that sees where it is let see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.generation import Generate
from speculation.vlm.inputs import as_sent
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.run import Question

LIMIT = 20
FIXED = {
    "num_assistant_tokens": 4,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
}


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions("random", 3)


@pytest.fixture(scope="module")
def twin(tiny_target: Path) -> Vlm:
    """The target once more: a draft that is always right if it is asked the same."""
    return load_vlm(tiny_target, dtype="float64")


def alone(vlm: Vlm, question: Question) -> tuple[int, ...]:
    sent = as_sent(vlm, question.jpeg)
    return tuple(token for token, _ in VlmSession(vlm, 512).greedy(question.prompt, sent, LIMIT))


def test_of_a_checkpoint_s_settings_only_the_penalty_that_it_was_loaded_with_counts(
    tiny_target: Path, draft: Vlm, asked: list[Question]
) -> None:
    vlm = load_vlm(tiny_target, dtype="float64")
    vlm.model.generation_config.repetition_penalty = 5.0
    vlm.model.generation_config.do_sample = True
    assert Generate(vlm, LIMIT)(asked[0]).tokens == alone(vlm, asked[0])
    penalised = replace(vlm, repetition_penalty=1.3)
    for question in asked:
        assert Generate(penalised, LIMIT)(question).tokens == alone(penalised, question)
        assert Generate(penalised, LIMIT, draft)(question).tokens == alone(penalised, question)
    assert alone(penalised, asked[0]) != alone(vlm, asked[0])


def test_a_perfect_draft_is_accepted_whole_if_and_only_if_it_sees(
    target: Vlm, twin: Vlm, asked: list[Question]
) -> None:
    """As shipped the assistant never sees the image; with sight its positions and pixels are all as the target's."""
    seeing = [Generate(target, LIMIT, twin, sight=True, **FIXED)(question) for question in asked]
    blind = [Generate(target, LIMIT, twin, sight=False, **FIXED)(question) for question in asked]
    assert "prepare_inputs_for_generation" not in vars(twin.model)
    for answer in seeing:
        assert answer.stats.rounds == -(-len(answer.tokens) // 5)
    assert sum(answer.stats.rounds for answer in blind) > sum(answer.stats.rounds for answer in seeing)
