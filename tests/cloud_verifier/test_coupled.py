"""Sampled answers through step state and engine: whatever is drafted, they are the target's own draws, in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud_verifier.engine import VlmEngine
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.step import Step
from speculation.exits import ExitHeads, Head
from speculation.logits_processors import LogitsProcessors, RepetitionPenalty
from speculation.sampling import GREEDY, MAX_KEY, Coupled, SamplingScheme, StepDraws, question_key
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT, BeginStep, Draft, FaultCode, Hello, Idle, begin_digest, extend_digest
from tests.cloud_verifier.bench import HELLO, Bench, begin, faults
from tests.cloud_verifier.prefills import prefill_at_once
from tests.cloud_verifier.steps import step_of
from tests.cloud_verifier.test_engine import CAPACITY, PROMPTS, jpeg

LENGTH = 12
HOW = (Coupled(0.7), Coupled(1.0, 20), Coupled(1.3, 0, 0.9), Coupled(0.7, 50, 0.9))


def truth(vlm: Vlm, row: int, how: SamplingScheme, key: int) -> list[int]:
    session = VlmSession(vlm, CAPACITY)
    return [token for token, _ in session.sampled(PROMPTS[row], jpeg(row), LENGTH, how, key)]


def random_draft(
    dice: random.Random, state: Step, right: Sequence[int], round: int, key: int, how: SamplingScheme
) -> Draft:
    """Return a tree that follows the true answer for a while, with wrong branches; behind, at or ahead of the state."""
    start = dice.randint(0, min(len(right), state.answer.position + 2))
    tokens: list[int] = []
    parents: list[int] = []
    node, place = ROOT, start
    for _ in range(dice.randint(1, 8)):
        if dice.random() < 0.75 and place < len(right):
            tokens.append(right[place])
            parents.append(node)
            node, place = len(tokens) - 1, place + 1
        else:
            tokens.append(dice.randrange(300))
            parents.append(dice.randint(ROOT, len(tokens) - 2))
    digest = begin_digest(PROMPTS[0], jpeg(0), how.text, key)
    return Draft(1, round, start, extend_digest(digest, list(right[:start])), tokens, parents)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from((*HOW, GREEDY)), st.integers(0, MAX_KEY), st.integers(0, 2**16), st.booleans(),
    st.sampled_from([1.0, 1.3]),
)  # fmt: skip
def test_any_trees_in_any_order_give_the_target_s_own_draws(
    target: Vlm, how: SamplingScheme, key: int, seed: int, on_device: bool, penalty: float
) -> None:
    target = replace(target, repetition_penalty=penalty)
    dice, right = random.Random(seed), truth(target, 0, how, key)
    committed = right[: dice.randint(0, 3)]
    engine = VlmEngine(target, 1, CAPACITY, ExitHeads(target, (1, 2), rank=4), 16)
    engine.draws_on_device = on_device
    begun = BeginStep(1, PROMPTS[0], jpeg(0), committed, LENGTH, dice.choice([Idle.WAIT, Idle.DECODE]), key=key)
    state = step_of(begun, target.eos, how)
    if not state.done:
        state.prefilled(0, 0.0)
        prefill_at_once(engine, 0, engine.prepare(begun.prompt, begun.jpeg), committed, LENGTH)
    for round in range(1, 200):
        if state.done:
            break
        for again in range(dice.randint(1, 2)):
            state.offer(random_draft(dice, state, right, 2 * round + again, key, how))
        if (choice := choose(state, 0.0)) is not None:
            *_, last = engine.verify([state.start(choice)])
            verdict = last.verdicts[0]
            if not state.accept(verdict).done:
                engine.keep(0, verdict.path, verdict.token)
    assert state.answer.tokens == right


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("how", HOW, ids=lambda how: how.text)
def test_exits_draw_with_the_target_s_noise(target: Vlm, how: SamplingScheme, penalty: float) -> None:
    """An exit whose logits are the target's has the target's verdict; on a short list, too, wherever it has one."""
    heads = ExitHeads(target, (1,), rank=4)
    listed = sorted(random.Random(0).sample(range(target.vocabulary), 250))
    heads.set_short_list(listed)
    heads.use(Head.SHORT)
    dice = np.random.default_rng(2)
    verdicts = 0
    for number in range(60):
        logits = 3.0 * dice.normal(size=(3, target.vocabulary))
        outside = np.setdiff1d(np.arange(target.vocabulary), listed)
        logits[:, outside] -= 30.0  # so that list and vocabulary have one support
        draws = StepDraws(question_key(4, number), number)
        prompt = dice.integers(target.vocabulary, size=60)
        processors = LogitsProcessors(RepetitionPenalty.of(penalty, prompt, target.vocabulary))
        root = processors.start([7, 8], 9)
        first = how.judge([], [], processors.process(logits[:1], [root]), draws).token
        tokens, parents = [first, int(dice.integers(target.vocabulary))], [ROOT, 0]
        processed = processors.process(logits, processors.along(root, tokens, parents))
        final = how.judge(tokens, parents, processed, draws)
        early = heads.judge(how, tokens, parents, logits[:, listed], None, draws, processors, root)
        silent = tokens[1] not in listed
        assert (early is None) is silent
        if early is not None:
            verdicts += 1
            assert (early.path, early.token) == (final.path, final.token)
            assert early.confidence == pytest.approx(final.confidence, rel=1e-6)
    assert verdicts > 20


# --- through the server


@pytest.mark.parametrize(("sampling", "key"), [("greedy", 9), ("coupled(temperature=0.5)", 8)])
def test_a_draft_for_other_draws_is_refused(sampling: str, key: int) -> None:
    bench = Bench()
    bench.welcome(b"a", Hello(HELLO.tokenizer, HELLO.vocabulary, sampling="coupled(temperature=0.5)"))
    bench.ask(b"a", begin(key=9))
    answers = bench.ask(b"a", Draft(1, 1, 0, begin_digest("long", b"jpeg", sampling, key), [1, 2]))
    assert faults(answers) == [FaultCode.NO_SESSION]
