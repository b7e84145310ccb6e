"""Tokens that a commit leaves to the edge: sampled, fetched, passed on."""

from __future__ import annotations

from typing import Any

import pytest

from edge_drafter.answer import Contradiction
from edge_drafter.residual import ResidualTokens
from edge_drafter.step import Step
from speculation.sampling import DraftSampler, Split
from speculation.wire import Commit, Fetch, Masses, extend_digest
from tests.edge_drafter.fakes import lone_step

REST = Masses(b"", 1.0)


class Sampling(DraftSampler):
    """Samples what a test sets: a token, None for one that needs the tail, or an error."""

    def __init__(self) -> None:
        self.next: Any = None

    def finish(self, digest: bytes, rest: Masses) -> int | None:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next  # type: ignore[no-any-return]


@pytest.fixture
def model() -> Sampling:
    return Sampling()


@pytest.fixture
def step() -> Step:
    return lone_step(max_tokens=8, sampling=Split(1.0))


def rejected(step: Step, tokens: list[int]) -> tuple[Commit, list[int]]:
    """Let the answer take a commit of these tokens that leaves the next one to the edge."""
    answer = step.answer
    digest = extend_digest(answer.digest, tokens)
    ((commit, new),) = answer.take(Commit(1, 1, answer.position, tokens, digest, False, rest=REST))
    return commit, new


def test_a_token_that_is_left_to_the_edge_completes_the_commit(model: Sampling, step: Step) -> None:
    residual = ResidualTokens(model, step)
    model.next = 5
    assert residual.complete(*rejected(step, [1, 2])) == [1, 2, 5]
    assert step.answer.tokens == [1, 2, 5] and residual.sampled_last
    step.answer.append([6])
    assert not residual.sampled_last


def test_a_token_that_needs_the_tail_is_fetched_and_its_commit_waits(model: Sampling, step: Step) -> None:
    residual = ResidualTokens(model, step)
    commit, new = rejected(step, [1])
    for _ in range(2):
        assert residual.complete(commit, new) == Fetch(1, 1, step.answer.digest)
        new = []
    assert step.stats.fetches == 1, "the same place, asked for twice"
    model.next = 3
    assert residual.complete(commit, []) == [1, 3] and step.answer.tokens == [1, 3]


def test_what_cannot_be_drawn_from_contradicts(model: Sampling, step: Step) -> None:
    model.next = ValueError("no distribution")
    with pytest.raises(Contradiction, match="no distribution"):
        ResidualTokens(model, step).complete(*rejected(step, [1]))
