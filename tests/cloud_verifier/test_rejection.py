"""Rejection sampling at the verifier: the token that is left to the edge, and what the rule does not go with."""

from __future__ import annotations

import numpy as np
import pytest

from cloud_verifier.answer import MAX_FETCHES
from cloud_verifier.choice import Act, Choice
from cloud_verifier.draft_buffer import HELD_DRAFTS
from cloud_verifier.interfaces import Row
from cloud_verifier.step import Step
from cloud_verifier.tree import ForeignDraft
from speculation.acceptance import Verdict
from speculation.sampling import GREEDY, Distribution, SamplingScheme, Sparse, Split
from speculation.sampling.masses import unpack
from speculation.sampling.rejection import Drawn
from speculation.wire import BeginStep, Draft, Fault, Fetch, Hello, Idle, begin_digest, extend_digest
from tests.cloud_verifier.bench import HELLO, Bench, begin
from tests.cloud_verifier.steps import prefilled, step_of

SPLIT = Split(1.0)
SPARSE = Sparse(1.0, keep=2)
TARGET = Distribution(np.array([0.1, 0.4, 0.0, 0.3, 0.2, 0.0], dtype=np.float32), 1.0)


def draft(how: Split, prefix: list[int], tokens: list[int], round: int = 1, **more: object) -> Draft:
    digest = extend_digest(begin_digest("p", b"j", how.text), prefix)
    return Draft(1, round, len(prefix), digest, tokens, None, [0.5] * len(tokens), **more)  # type: ignore[arg-type]


def rejected(how: Split, max_tokens: int = 8) -> Step:
    """Return a step whose draft 3, 2, 1 stood up to the 3."""
    state = step(BeginStep(1, "p", b"j", max_tokens=max_tokens), [5], how)
    assert state.offer(draft(how, [], [3, 2, 1]), 0.0, (Drawn(0.5),) * 3) == []
    row = start(state)
    assert [each.chance for each in row.evidence] == [0.5] * 3
    state.accept(Verdict((0,), 4, 1.0, how.rest(TARGET)))
    return state


def step(begin: BeginStep, ends: list[int], how: SamplingScheme = GREEDY) -> Step:
    """Return a step whose prefill is done."""
    return prefilled(step_of(begin, ends, how))


def start(state: Step) -> Row:
    assert state.drafts.best is not None
    return state.start(Choice(Act.VERIFY, state.drafts.best))


def test_the_answer_waits_for_the_token_that_the_edge_draws() -> None:
    state = rejected(SPLIT)
    assert state.answer.tokens == [3] and not state.free
    (again,) = state.offer(draft(SPLIT, [], [3, 2, 1]))
    assert again.tokens == [3] and again.passes == 0 and again.rest is not None
    assert (unpack(again.rest, 6).row == TARGET.row).all()
    assert state.offer(draft(SPLIT, [3, 4], [1], round=2, drawn=4)) == []
    assert state.answer.tokens == [3, 4] and start(state).tokens == (1,)


def test_a_draft_that_brings_another_token_than_its_prefix_has_is_none() -> None:
    state = rejected(SPLIT)
    state.offer(draft(SPLIT, [3, 4], [1], round=2, drawn=1))
    assert state.answer.tokens == [3] and not state.free
    with pytest.raises(ForeignDraft, match="Draft.drawn 2 has no probability at answer position 1"):
        state.offer(draft(SPLIT, [3, 2], [1], round=2, drawn=2))


def test_a_drawn_token_may_end_the_answer() -> None:
    state = step(BeginStep(1, "p", b"j", max_tokens=8), [4], SPLIT)
    state.offer(draft(SPLIT, [], [3, 2]), 0.0, (Drawn(0.5),) * 2)
    start(state)
    state.accept(Verdict((0,), 1, 1.0, SPLIT.rest(TARGET)))
    (last,) = state.offer(draft(SPLIT, [3, 4], [], round=2, drawn=4))
    assert last.done and last.tokens == [] and state.done


def test_a_head_comes_down_and_the_rest_when_it_is_asked_for() -> None:
    state = rejected(SPARSE)
    (again,) = state.repeat(0, 1)
    assert again.rest is not None and len(again.rest.ids) == 8 and again.rest.tail == pytest.approx(0.3)
    digest = extend_digest(begin_digest("p", b"j", SPARSE.text), [3])
    (whole,) = state.fetch(Fetch(1, 1, digest))
    assert whole.rest is not None and whole.rest.tail == 0.0 and (whole.start, whole.tokens) == (1, [])
    assert (unpack(whole.rest, 6).row == TARGET.row).all()
    assert state.fetch(Fetch(1, 1, bytes(8))) == [] == state.fetch(Fetch(1, 0, digest))
    state.offer(draft(SPARSE, [3, 1], [], round=2, drawn=1))
    assert state.fetch(Fetch(1, 1, digest)) == []


def test_a_whole_distribution_is_sent_a_few_times_and_no_more() -> None:
    state = rejected(SPARSE)
    digest = extend_digest(begin_digest("p", b"j", SPARSE.text), [3])
    assert sum(len(state.fetch(Fetch(1, 1, digest))) for _ in range(100)) == MAX_FETCHES


def test_drafts_that_cannot_be_next_are_not_kept() -> None:
    """A draft ahead of the answer has no place in rejection sampling, and what gave way leaves nothing behind."""
    state = step(BeginStep(1, "p", b"j"), [5], SPLIT)
    for round in range(1, 200):
        ahead = Draft(1, round, 3, bytes([round] * 8), [1], None, [0.5])
        assert state.offer(ahead, 0.0, (Drawn(0.5),)) == [] and state.drafts.best is None
    plain = step(BeginStep(1, "p", b"j"), [5])
    for round in range(1, 200):
        plain.offer(Draft(1, round, 3, bytes([round] * 8), [1]))
    held = [sum(each.drafts.get(round) is not None for round in range(200)) for each in (state, plain)]
    assert held == [0, HELD_DRAFTS]


@pytest.mark.parametrize(
    ("step", "fields", "message"),
    [
        ({"idle": Idle.LEDGER}, {}, "sampling split excludes idle decoding"),
        ({"hints": [[1]]}, {}, "sampling split excludes idle decoding, hints"),
        ({"idle": Idle.DECODE}, {"chosen": [0.5]}, "where drafts come; begin the step with WAIT"),
        ({}, {}, "Draft.chosen has 0 entries for 1 tokens"),
        ({}, {"chosen": [0.5], "drawn": 17}, "Draft.drawn"),
    ],
)
def test_what_the_rule_does_not_go_with_is_refused(
    step: dict[str, object], fields: dict[str, object], message: str
) -> None:
    bench = Bench()
    bench.welcome(b"a", Hello(HELLO.tokenizer, HELLO.vocabulary, sampling=SPLIT.text))
    draft = Draft(1, 1, 0, begin_digest("long", b"jpeg", SPLIT.text), [1], **fields)  # type: ignore[arg-type]
    answers = bench.ask(b"a", begin(**step), draft)
    assert any(isinstance(each, Fault) and message in each.message for each in answers)
