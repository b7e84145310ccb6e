"""A step places drafts by their digest: walked down, verified, held, or void."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.choice import Act, Choice
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.request import Request, empty_digest
from cloud_verifier.step import Step
from cloud_verifier.tree import NOTHING, Tree
from speculation.acceptance import Verdict
from speculation.sampling import GREEDY
from speculation.wire import BeginStep, Commit, Draft, Idle, begin_digest, extend_digest
from tests.cloud_verifier.steps import prefilled, step_of


def state(answer: list[int], **changes: object) -> Step:
    """Return a step whose answer became `answer` by decoding alone."""
    fields: dict[str, object] = {"step": 7, "prompt": "p", "jpeg": b"j", "max_tokens": 12, **changes}
    step = prefilled(step_of(BeginStep(**fields)))  # type: ignore[arg-type]
    for token in answer:
        decode(step, token)
    return step


def take(step: Step) -> Tree:
    """Start a pass over the best draft, or over nothing, and return what it verifies."""
    step.start(Choice(Act.VERIFY, step.drafts.best or NOTHING))
    return step.tree


def decode(step: Step, token: int) -> Commit:
    """Let the target decode a token alone."""
    step.start(Choice(Act.DECODE))
    return step.accept(Verdict((), token, 1.0))


def draft(prefix: list[int], tokens: list[int], round: int = 1, parents: list[int] | None = None) -> Draft:
    return Draft(7, round, len(prefix), extend_digest(begin_digest("p", b"j"), prefix), tokens, parents)


@pytest.mark.parametrize("tokens", [[3, 4], [3, 5, 6], [9]])
def test_a_past_draft_that_leads_nowhere_gets_what_it_missed(tokens: list[int]) -> None:
    step = state([3, 4])
    (commit,) = step.offer(draft([], tokens, round=5))
    assert (commit.start, commit.tokens, commit.round, commit.passes, commit.done) == (0, [3, 4], 5, 0, False)
    assert commit.digest == step.answer.digest and choose(step, 0.0) is None


@pytest.mark.parametrize(("begun", "verified"), [(False, [(3, 4, 5, 6)]), (True, [(3, 4), (6,)])])
def test_a_draft_that_grows_is_verified_whole_or_its_rest_in_the_next_pass(
    begun: bool, verified: list[tuple[int, ...]]
) -> None:
    step, target = state([]), [3, 4, 5, 6, 7]
    step.offer(draft([], [3, 4], round=1))
    seen = [take(step).tokens] if begun else []
    assert step.offer(draft([], [3, 4, 5, 6], round=2)) == []
    if begun:
        step.accept(Verdict((0, 1), target[2], 1.0))
    seen.append(take(step).tokens)
    assert seen == verified


@settings(max_examples=40)
@given(
    target=st.lists(st.integers(1, 3), min_size=8, max_size=8),
    drafted=st.lists(st.integers(1, 3), min_size=1, max_size=7),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    passes=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_parts_of_a_growing_draft_in_any_order_lost_or_repeated_leave_the_targets_answer(
    target: list[int], drafted: list[int], lengths: list[int], order: random.Random, passes: list[bool]
) -> None:
    """A pass may run between any two parts; what is not sent is lost."""
    step = state([], max_tokens=8)
    parts = [draft([], drafted[:length], round) for round, length in enumerate(sorted(lengths), start=1)]
    sent = [order.choice(parts) for _ in passes]

    def end() -> None:
        path, position = step.tree.path(target[step.answer.position :]), step.answer.position
        step.accept(Verdict(path, target[min(position + len(path), 7)], 1.0))

    for part, runs in zip(sent, passes, strict=True):
        step.offer(part)
        if step.row is not None and runs:
            end()
        elif step.row is None and not step.done and step.drafts.best is not None:
            take(step)
    if step.row is not None:
        end()
    while not step.done:
        decode(step, target[step.answer.position])
    assert step.answer.tokens == target


HINT = [3, 4, 5, 6, 4, 5, 7, 0, 9]


@pytest.mark.parametrize(
    ("answer", "hints", "proposed"),
    [
        ([], [HINT], (3, 4, 5, 6)),  # from the beginning
        ([3, 4], [HINT], (5, 6, 4, 5)),  # goes on as it began
        ([8, 4, 5], [HINT], (7, 0)),  # looked up, the latest place; nothing behind an end token
        ([8, 5, 6], [[1], HINT], (4, 5, 7, 0)),
        ([9, 3, 4, 5], [HINT], (6, 4, 5, 7)),  # the longer n-gram is the better one
        ([8, 7], [HINT], None),  # one token alone is too little
        ([3, 4, 5, 6, 4, 5, 7], [HINT], (0,)),
        ([3, 4], [], None),
    ],
)
def test_a_hint_proposes_what_followed_in_an_earlier_answer(
    answer: list[int], hints: list[list[int]], proposed: tuple[int, ...] | None
) -> None:
    tree = state(answer, hints=hints).drafts.hint(4)
    assert (tree and tree.tokens) == proposed
    assert tree is None or (tree.round, tree.levels[-1]) == (0, len(tree.tokens))


def test_a_long_answer_is_repeated_in_commits_that_the_wire_takes() -> None:
    answer = [1 + i % 5 for i in range(150)]
    step = state(answer, max_tokens=512)
    commits = step.repeat(3, 2)
    assert [c.start for c in commits] == [3, 68, 133] and all(len(c.tokens) <= 65 for c in commits)
    assert [t for c in commits for t in c.tokens] == answer[3:]
    assert commits[0].digest == extend_digest(begin_digest("p", b"j"), answer[:68])


@pytest.mark.parametrize(
    ("changes", "same"),
    [({}, True), ({"committed": [3]}, True), ({"committed": [9]}, False), ({"committed": [3, 4, 5]}, False),
     ({"step": 8}, False), ({"jpeg": b"x"}, False), ({"max_tokens": 5}, False), ({"idle": Idle.DECODE}, True)],
)  # fmt: skip
def test_a_begin_step_continues_the_answer_it_knows_a_part_of(changes: dict[str, object], same: bool) -> None:
    fields: dict[str, object] = {"step": 7, "prompt": "p", "jpeg": b"j", "max_tokens": 12, **changes}
    begun = BeginStep(**fields)  # type: ignore[arg-type]
    assert state([3, 4]).continues(begun, Request.of(begun), empty_digest(begun, GREEDY)) is same
