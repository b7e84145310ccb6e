from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter.answer import HELD_COMMITS, Answer, Contradiction
from speculation.wire import Commit, Masses, begin_digest, extend_digest

PROMPT, JPEG, EOS = "find it", b"jpeg", 9


def commit(start: int, answer: list[int], end: int, done: bool = False) -> Commit:
    digest = extend_digest(begin_digest(PROMPT, JPEG), answer[:end])
    return Commit(1, 1, start, answer[start:end], digest, done)


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20),
    st.integers(0, 1000),
)
def test_any_order_overlap_and_repetition_of_commits_gives_the_answer(
    tokens: list[int], cuts: list[tuple[int, int]], seed: int
) -> None:
    tokens = [*tokens, EOS]
    spans = [(min(cut), max(cut)) for cut in cuts] + [(i, i + 1) for i in range(len(tokens))]
    random.Random(seed).shuffle(spans)
    answer = Answer(begin_digest(PROMPT, JPEG), (EOS,), 100)
    taken: list[int] = []
    for start, end in spans:
        start, end = min(start, len(tokens)), min(end, len(tokens))
        for _, new in answer.take(commit(start, tokens, end)):
            taken += new
        assert tokens[: answer.position] == answer.tokens == taken
    assert answer.tokens == tokens and answer.done
    assert answer.digest == extend_digest(begin_digest(PROMPT, JPEG), tokens)


def test_a_commit_about_another_answer_is_no_truth() -> None:
    answer = Answer(begin_digest(PROMPT, JPEG), (EOS,), 100)
    answer.take(commit(0, [1, 2], 2))
    with pytest.raises(Contradiction, match="another prompt, image or answer"):
        answer.take(commit(2, [5, 5, 5], 3))
    with pytest.raises(Contradiction, match="took back"):
        answer.take(commit(0, [1, 3, 4], 3))
    assert answer.tokens == [1, 2]


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "sentence"),
    [
        ([1, EOS, 3], 100, "committed tokens after the answer's end, at position 1"),
        ([1, 2, 3], 2, "committed 3 tokens, the answer has at most 2"),
    ],
)
def test_tokens_beyond_the_end_are_no_truth(tokens: list[int], max_tokens: int, sentence: str) -> None:
    answer = Answer(begin_digest(PROMPT, JPEG), (EOS,), max_tokens)
    answer.take(commit(0, tokens, 1))
    with pytest.raises(Contradiction, match=sentence):
        answer.take(commit(1, tokens, 3, done=True))
    assert answer.tokens == [1] and not answer.done
    answer.take(commit(1, tokens, 2, done=True))
    assert answer.done
    with pytest.raises(Contradiction, match="after the answer's end, at position 2"):
        answer.take(commit(2, tokens, 3, done=True))
    assert answer.tokens == tokens[:2]


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[int], int, list[Commit]]:
    """Return a true answer, its max_tokens, and commits: honest ones, and ones that the way or a bug changed."""
    body = draw(st.lists(st.integers(0, 8), min_size=1, max_size=12))
    truth, most = draw(st.sampled_from([([*body, EOS], 100), (body, len(body))]))
    beyond = [*truth, *draw(st.lists(st.integers(0, EOS), min_size=1, max_size=3))]
    made = []
    for _ in range(draw(st.integers(1, 20))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(truth))] * 2)))
        honest = commit(start, truth, end, done=end == len(truth))
        change = draw(st.sampled_from(["none", "none", "done", "tokens", "start", "digest", "beyond"]))
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


@given(commits())
def test_whatever_commits_arrive_the_answer_is_a_part_of_the_true_one(
    case: tuple[list[int], int, list[Commit]],
) -> None:
    truth, most, arriving = case
    answer = Answer(begin_digest(PROMPT, JPEG), (EOS,), most)
    for each in arriving:
        with contextlib.suppress(Contradiction):
            answer.take(each)
        assert answer.tokens == truth[: answer.position]
        assert answer.done == (answer.position == len(truth))


def test_held_commits_are_bounded_and_the_nearest_stay() -> None:
    tokens = [0] * 200
    answer = Answer(begin_digest(PROMPT, JPEG), (EOS,), 500)
    for start in reversed(range(1, 200)):
        answer.take(commit(start, tokens, start + 1))
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
