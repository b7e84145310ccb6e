from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.drafting.answer import HELD_COMMITS, Answer, Contradiction
from speculation.wire import Commit, begin_digest, extend_digest

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
    answer = Answer(PROMPT, JPEG, (EOS,), 100)
    taken: list[int] = []
    for start, end in spans:
        start, end = min(start, len(tokens)), min(end, len(tokens))
        for _, new in answer.take(commit(start, tokens, end)):
            taken += new
        assert tokens[: answer.position] == answer.tokens == taken
    assert answer.tokens == tokens and answer.done
    assert answer.digest == extend_digest(begin_digest(PROMPT, JPEG), tokens)


def test_a_commit_about_another_answer_is_no_truth() -> None:
    answer = Answer(PROMPT, JPEG, (EOS,), 100)
    answer.take(commit(0, [1, 2], 2))
    with pytest.raises(Contradiction, match="another prompt, image or answer"):
        answer.take(commit(2, [5, 5, 5], 3))
    with pytest.raises(Contradiction, match="took back"):
        answer.take(commit(0, [1, 3, 4], 3))
    assert answer.tokens == [1, 2]


def test_a_bare_done_ends_the_answer_once() -> None:
    answer = Answer(PROMPT, JPEG, (EOS,), 100, (1, 2))
    bare = commit(2, [1, 2], 2, done=True)
    assert answer.take(bare) == [(bare, [])] and answer.done
    assert answer.take(bare) == []


def test_held_commits_are_bounded_and_the_nearest_stay() -> None:
    tokens = [0] * 200
    answer = Answer(PROMPT, JPEG, (EOS,), 500)
    for start in reversed(range(1, 200)):
        answer.take(commit(start, tokens, start + 1))
    answer.take(commit(0, tokens, 1))
    assert answer.position == HELD_COMMITS


def test_room_and_end_of_a_resumed_answer() -> None:
    assert Answer(PROMPT, JPEG, (EOS,), 5, (1, 2)).room == 3
    assert Answer(PROMPT, JPEG, (EOS,), 2, (1, 2)).done
    assert Answer(PROMPT, JPEG, (EOS,), 5, (1, EOS)).done
