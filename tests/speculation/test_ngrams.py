"""Earlier answers propose what followed there."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation import ngrams
from speculation.ngrams import KEPT_ANSWERS, LONGER, LONGEST, Ngrams

ANSWERS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=12)


def followed(answers: list[list[int]], prefix: list[int]) -> list[int]:
    """Return, the slow way, what followed the longest known ending, at its last place in the newest answer."""
    marked = [[-1, *answer] for answer in answers]
    whole = [-1, *prefix]
    for size in range(min(LONGEST, len(whole)), 0, -1):
        ending = whole[-size:]
        if size < 2 and ending != [-1]:
            break
        for m in reversed(marked):
            newest = max(size, len(m) - ngrams.INDEXED_TOKENS)
            places = [end for end in range(newest, len(m)) if m[end - size : end] == ending]
            if places:
                return m[places[-1] :]
    return []


@given(answers=ANSWERS, prefix=st.lists(st.integers(0, 3), max_size=10), limit=st.integers(1, 6))
@pytest.mark.parametrize("indexed", [5, 512])
def test_a_lookup_continues_the_longest_known_ending(
    indexed: int, answers: list[list[int]], prefix: list[int], limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "INDEXED_TOKENS", indexed)
        earlier = Ngrams()
        kept: list[list[int]] = []
        for answer in answers:
            earlier.remember(answer)
            kept = [*(each for each in kept if each != answer), answer][-KEPT_ANSWERS:]
        assert earlier.lookup(prefix, limit) == followed(kept, prefix)[:limit]


def test_long_answers_take_bounded_memory() -> None:
    earlier, most = Ngrams(), KEPT_ANSWERS * ngrams.INDEXED_TOKENS * LONGEST
    for first in range(0, 24_000, 2_000):
        earlier.remember(range(first, first + 2_000))
        assert len(earlier._places) <= most
    assert earlier.lookup([23_000, 23_001], 2) == [] and earlier.lookup([23_900, 23_901], 2) == [23_902, 23_903]
    assert earlier.lookup([7_900, 7_901], 2) == [], "it is forgotten"
    assert {id(answer) for answer, _ in earlier._places.values()} <= {id(answer) for answer in earlier._answers}


@given(answers=ANSWERS, prefix=st.lists(st.integers(0, 3), max_size=10))
def test_a_token_stands_behind_the_ngram_that_it_followed(answers: list[list[int]], prefix: list[int]) -> None:
    """The first length is that of the longest known ending; a shorter prefix, or one more token, changes it by one."""
    earlier = Ngrams()
    for answer in answers:
        earlier.remember(answer)
    tokens, lengths = earlier.proposals(prefix, 4)
    assert len(tokens) == len(lengths) and all(1 <= length <= LONGER for length in lengths)
    assert all(after == min(before + 1, LONGER) for before, after in itertools.pairwise(lengths))
    if tokens:
        marked = [-1, *prefix]
        kept = [[-1, *answer] for answer in answers]
        ending = marked[-lengths[0] :]
        assert any(each[start : start + lengths[0]] == ending for each in kept for start in range(len(each)))


@given(verdicts=st.lists(st.tuples(st.integers(1, LONGER), st.booleans()), max_size=60))
def test_a_chance_is_a_share_and_follows_its_own_length(verdicts: list[tuple[int, bool]]) -> None:
    earlier = Ngrams()
    for length, right in verdicts:
        before, other = earlier.chance(length), earlier.acceptance
        earlier.judged(length, right)
        assert (earlier.acceptance > other) is right or earlier.acceptance == other
        assert (earlier.chance(length) > before) is right
        assert 0.0 < earlier.chance(length) < 1.0
    for _ in range(200):
        earlier.judged(3, True)
        earlier.judged(2, False)
    assert earlier.chance(3) > 0.9 and earlier.chance(2) < 0.1
