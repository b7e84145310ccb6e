from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.answer import HELD_COMMITS, Answer, Contradiction
from speculation.wire import Commit, Masses, begin_digest, extend_digest

PROMPT, JPEG, EOS = "find it", b"jpeg", 9


def commit(start: int, answer: list[int], end: int, done: bool = False) -> Commit:
    digest = extend_digest(begin_digest(PROMPT, JPEG), answer[:end])
    return Commit(1, 1, start, answer[start:end], digest, done)


@pytest.mark.parametrize(
    ("known", "arrives", "max_tokens", "sentence"),
    [
        ([1, 2], commit(2, [5, 5, 5], 3), 100, "another prompt, image or answer"),
        ([1, 2], commit(0, [1, 3, 4], 3), 100, "took back"),
        ([1], commit(1, [1, EOS, 3], 3), 100, "committed tokens after the answer's end, at position 1"),
        ([1, EOS], commit(2, [1, EOS, 3], 3), 100, "committed tokens after the answer's end, at position 2"),
        ([1], commit(1, [1, 2, 3], 3), 2, "committed 3 tokens, the answer has at most 2"),
    ],
)
def test_what_cannot_be_the_answer_is_no_truth(
    known: list[int], arrives: Commit, max_tokens: int, sentence: str
) -> None:
    answer = Answer(begin_digest(PROMPT, JPEG), (EOS,), max_tokens)
    answer.take(commit(0, known, len(known), done=EOS in known))
    with pytest.raises(Contradiction, match=sentence):
        answer.take(arrives)
    assert answer.tokens == known and answer.done == (EOS in known)


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[int], int, list[Commit]]:
    """Return a true answer, its max_tokens, and commits: honest ones, or some that the way or a bug changed, too."""
    body = draw(st.lists(st.integers(0, 8), min_size=1, max_size=12))
    truth, most = draw(st.sampled_from([([*body, EOS], 100), (body, len(body))]))
    beyond = [*truth, *draw(st.lists(st.integers(0, EOS), min_size=1, max_size=3))]
    changes = draw(st.sampled_from([["none"], ["none", "done", "tokens", "start", "digest", "beyond"]]))
    made = []
    for _ in range(draw(st.integers(1, 20))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(truth))] * 2)))
        honest = commit(start, truth, end, done=end == len(truth))
        change = draw(st.sampled_from(changes))
        other: dict[str, Any] = {
            "none": {},
            "done": {"done": not honest.done},
            "tokens": {"tokens": draw(st.lists(st.integers(0, EOS), max_size=6))},
            "start": {"start": draw(st.integers(0, 20))},
            "digest": {"digest": draw(st.binary(min_size=8, max_size=8))},
        }.get(change, {})
        made.append(
            commit(start, beyond, draw(st.integers(len(truth), len(beyond))), draw(st.booleans()))
            if change == "beyond"
            else msgspec.structs.replace(honest, **other)
        )
    return truth, most, made


@settings(max_examples=60)
@given(commits(), st.randoms(use_true_random=False))
def test_whatever_commits_arrive_in_any_order_the_answer_grows_to_the_true_one(
    case: tuple[list[int], int, list[Commit]], dice: random.Random
) -> None:
    truth, most, arriving = case
    answer, taken, all_fit = Answer(begin_digest(PROMPT, JPEG), (EOS,), most), list[int](), True
    arriving += [commit(at, truth, at + 1, done=at + 1 == len(truth)) for at in range(len(truth))]
    dice.shuffle(arriving)
    for each in arriving:
        try:
            for _, new in answer.take(each):
                taken += new
        except Contradiction:
            all_fit = False
        assert answer.tokens == truth[: answer.position]
        assert answer.done == (answer.position == len(truth))
    if all_fit:
        assert answer.done and taken == truth
        assert answer.digest == extend_digest(begin_digest(PROMPT, JPEG), truth)


def test_held_commits_are_bounded_and_the_nearest_stay() -> None:
    tokens = [0] * 200
    answer = Answer(begin_digest(PROMPT, JPEG), (EOS,), 500)
    for start in reversed(range(1, 200)):
        answer.take(commit(start, tokens, start + 1))
        answer.take(commit(start, tokens, start))  # a shorter one pushes none out
    answer.take(commit(0, tokens, 1))
    assert answer.position == HELD_COMMITS


def test_a_commit_ahead_with_a_distribution_is_not_held() -> None:
    """Each may take 4 MB, and an honest verifier sends none before it has the token that the edge samples."""
    tokens, answer = [0] * 10, Answer(begin_digest(PROMPT, JPEG), (EOS,), 500)
    large = msgspec.structs.replace(commit(5, tokens, 6), rest=Masses(bytes(400), 1.0))
    assert answer.take(large) == []
    answer.take(commit(0, tokens, 5))
    assert answer.position == 5
    assert len(answer.take(large)) == 1 and answer.position == 6
