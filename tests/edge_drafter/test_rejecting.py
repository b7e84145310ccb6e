"""Rejection sampling's half on the edge: tokens that a commit leaves to it, asked for, drawn and passed on."""

from __future__ import annotations

from typing import Any

import pytest

from edge_drafter import DraftingConfig, StepRequest
from edge_drafter.answer import Contradiction
from edge_drafter.controller import Controller
from edge_drafter.rejecting import Rejecting
from edge_drafter.step import Step
from speculation.sampling import Rule, SamplingSettings
from speculation.wire import Commit, Draft, Fetch, Masses, extend_digest
from tests.edge_drafter.fakes import EOS, FakeClock

HOW = SamplingSettings(1.0, rule=Rule.SPLIT)
REST = Masses(b"", 1.0)


class Drawing:
    """A model that draws what a test sets: a token, None for one that needs the tail, or an error."""

    def __init__(self) -> None:
        self.next: Any = None

    def draw_rest(self, prefix: bytes, target: Masses) -> int | None:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next  # type: ignore[no-any-return]

    def evidence(self, prefix: bytes, tokens: list[int]) -> tuple[list[float], list[Masses]]:
        return [0.5] * len(tokens), []


@pytest.fixture
def model() -> Drawing:
    return Drawing()


@pytest.fixture
def step() -> Step:
    request = StepRequest(7, "p", b"j", (EOS,), 8, sampling=HOW)
    return Step(DraftingConfig(), request, Controller(None), FakeClock())


def rejected(step: Step, tokens: list[int]) -> tuple[Commit, list[int]]:
    """Let the answer take a commit of these tokens that leaves the next one to the edge."""
    answer = step.answer
    digest = extend_digest(answer.digest, tokens)
    ((commit, new),) = answer.take(Commit(7, 1, answer.position, tokens, digest, False, rest=REST))
    return commit, new


def test_the_token_after_a_rejection_is_drawn_and_goes_up_with_the_next_draft(model: Drawing, step: Step) -> None:
    rejecting = Rejecting(model, step)  # type: ignore[arg-type]
    model.next = 5
    assert rejecting.complete(*rejected(step, [1, 2])) == [1, 2, 5]
    assert step.answer.tokens == [1, 2, 5] and rejecting.drew_last
    draft = Draft(7, 2, 3, step.answer.digest, [4])
    assert rejecting.with_evidence(draft) == Draft(7, 2, 3, step.answer.digest, [4], None, [0.5], [], 5)
    ahead = Draft(7, 3, 4, step.answer.digest, [4])
    assert rejecting.with_evidence(ahead).drawn is None, "a draft ahead of the answer does not follow the drawn token"
    step.answer.append([6])
    assert not rejecting.drew_last


def test_a_token_that_needs_the_tail_is_asked_for_and_its_commit_waits(model: Drawing, step: Step) -> None:
    rejecting = Rejecting(model, step)  # type: ignore[arg-type]
    commit, new = rejected(step, [1])
    for _ in range(2):
        assert rejecting.complete(commit, new) == Fetch(7, 1, step.answer.digest)
        new = []
    assert step.stats.fetches == 1, "the same place, asked for twice"
    model.next = 3
    assert rejecting.complete(commit, []) == [1, 3] and step.answer.tokens == [1, 3]


def test_what_cannot_be_drawn_from_contradicts(model: Drawing, step: Step) -> None:
    model.next = ValueError("no distribution")
    with pytest.raises(Contradiction, match="no distribution"):
        Rejecting(model, step).complete(*rejected(step, [1]))  # type: ignore[arg-type]
