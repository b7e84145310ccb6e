"""Recordings hold what the models predict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloud_verifier.engine import VlmEngine
from cloud_verifier.interfaces import Row
from speculation.exits import ExitHeads, Reliability
from speculation.language.grammar import CONSTRAINED, Constraint, Grammars, grammar_for, masked
from speculation.sampling import GREEDY
from speculation.vlm.inputs import as_sent
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT
from tests.cloud_verifier.prefills import prefill_at_once
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.virtual_time import Recording, Timings
from vlm_nav_evaluation.virtual_time.models import RecordedDraftModel, RecordedEngine
from vlm_nav_evaluation.virtual_time.record import Models, record

LIMIT = 12


@pytest.fixture(scope="module")
def asked(target: Vlm) -> list[Question]:
    # In the size in which edges send them, in which they are recorded.
    return [replace(question, jpeg=as_sent(target, question.jpeg)) for question in questions("random", 2)]


@pytest.fixture(scope="module")
def exits(target: Vlm) -> ExitHeads:
    """Exits whose weights are random, so that they are sometimes right; measured as sure or not."""
    heads = ExitHeads(target, (0, 2), rank=4)
    heads.set_reliability({layer: Reliability((0.0, 0.01, 1.0), (0.2, 0.7)) for layer in heads.layers})
    return heads


@pytest.fixture(scope="module")
def recording(target: Vlm, draft: Vlm, exits: ExitHeads, asked: list[Question]) -> Recording:
    return record(Models(target, draft, exits, None), asked, LIMIT)


def nothing(seconds: float) -> None: ...


def test_the_answers_are_the_targets(recording: Recording, target: Vlm, asked: list[Question]) -> None:
    session = VlmSession(target, 512)
    for step, question in zip(recording.steps, asked, strict=True):
        greedy = session.greedy(question.prompt, question.jpeg, LIMIT)
        assert step.tokens == tuple(token for token, _ in greedy)
        assert step.image_bytes == len(question.jpeg)


def test_constrained_answers_are_the_targets_and_nobody_proposes_what_the_grammar_leaves_out(
    target: Vlm, draft: Vlm, exits: ExitHeads, asked: list[Question]
) -> None:
    limit, question = 40, asked[0]
    (step,) = record(Models(target, draft, exits, None), [question], limit, answers=CONSTRAINED).steps
    grammar = Grammars(target.tokenizer, target.vocabulary).of(grammar_for(question.prompt), target.eos)
    truth = VlmSession(target, 512).sampled(question.prompt, question.jpeg, limit, GREEDY, 0, grammar)
    assert step.tokens == tuple(token for token, _ in truth)
    masks = Constraint(grammar, grammar.start(limit)).masks(step.tokens[:-1], range(ROOT, len(step.tokens) - 2))
    assert len(masks) == len(step.tokens) and step.exit_tokens is not None and step.exit_probabilities is not None
    own, session = 0, VlmSession(draft, 512)
    session.begin(question.prompt, question.jpeg)
    for place, (token, mask) in enumerate(zip(step.tokens, masks, strict=True)):
        assert mask is not None and mask[token]
        likely = step.draft_tokens[place, 0]
        row = masked(session.root_logits()[None], [mask])[0]
        assert likely == np.argmax(row)
        own += likely != np.argmax(session.root_logits())
        assert mask[step.draft_tokens[place][step.draft_probabilities[place] > 0.0]].all()
        assert mask[step.exit_tokens[place][step.exit_probabilities[place] > 0.0]].all()
        session.commit((), token)
    assert own, "the mask changed what the draft model says"


def test_the_draft_predicts_as_the_draft_model(recording: Recording, draft: Vlm, asked: list[Question]) -> None:
    session, model = VlmSession(draft, 512), RecordedDraftModel(recording, Timings(), nothing)
    for number, (step, question) in enumerate(zip(recording.steps, asked, strict=True)):
        session.begin(question.prompt, question.jpeg)
        model.begin(question.prompt, recording.image(number))
        for token in step.tokens:
            real, virtual = session.root_logits(), model.root_logits()
            assert int(real.argmax()) == int(virtual.argmax())
            softmax = np.exp(real - real.max()) / np.exp(real - real.max()).sum()
            assert np.exp(virtual.max()) == pytest.approx(softmax.max(), rel=1e-4)
            assert session.commit((), token) == model.commit((), token) == {}


def test_target_and_exits_predict_as_the_engine(
    recording: Recording, target: Vlm, exits: ExitHeads, asked: list[Question]
) -> None:
    real = VlmEngine(target, 1, 512, exits, max_draft=16)
    virtual = RecordedEngine(recording, Timings(), nothing)
    compared = 0
    for number, (step, question) in enumerate(zip(recording.steps, asked, strict=True)):
        for place in range(len(step.tokens) - 3):
            tokens = (*step.tokens[place : place + place % 3], (step.tokens[place] + 1) % target.vocabulary)
            row = Row(0, tokens, tuple(range(ROOT, len(tokens) - 1)))
            for engine, jpeg in ((real, question.jpeg), (virtual, recording.image(number))):
                prefill_at_once(engine, 0, engine.prepare(question.prompt, jpeg), step.tokens[:place], LIMIT)
            for one, other in zip(real.verify([row]), virtual.verify([row]), strict=True):
                assert sorted(one.verdicts) == sorted(other.verdicts)
                for verdict in one.verdicts.values():
                    again = other.verdicts[0]
                    assert (verdict.path, verdict.token) == (again.path, again.token)
                    if one.layer < 3:
                        assert verdict.confidence == pytest.approx(again.confidence, rel=1e-4)
                        compared += 1
    assert compared > 20
