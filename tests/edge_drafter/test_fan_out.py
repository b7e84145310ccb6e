from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter.fan_out import DECAY, fan_out


def hit(counts: tuple[int, ...], acceptance: float) -> float:
    """The probability that a guess is right, by the power law; a place without guesses is always missed."""
    length = len(counts) - 1
    chances = [acceptance**k * (1.0 - acceptance) for k in range(length)] + [acceptance**length]
    return sum(chance * (1.0 - count**-DECAY) for chance, count in zip(chances, counts, strict=True) if count)


@given(st.integers(0, 64), st.floats(0.0, 1.0), st.integers(0, 16))
def test_the_whole_budget_is_spent_and_falls_with_the_prefix(budget: int, acceptance: float, length: int) -> None:
    counts = fan_out(budget, acceptance, length)
    assert len(counts) == length + 1 and sum(counts) == budget and min(counts) >= 0
    assert all(left >= right for left, right in pairwise(counts[:-1]))


@pytest.mark.parametrize(("budget", "acceptance"), [(12, 0.5), (16, 0.7), (16, 0.9)])
def test_no_other_split_of_the_budget_is_much_better(budget: int, acceptance: float) -> None:
    """The series is the best of real numbers; rounding costs little beside the best of whole ones."""
    splits = (split for split in product(range(budget + 1), repeat=4) if sum(split) == budget)
    best = max(hit(split, acceptance) for split in splits)
    assert hit(tuple(fan_out(budget, acceptance, 3)), acceptance) > best - 0.02


def test_an_acceptance_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="acceptance is 1.5"):
        fan_out(4, 1.5, 2)
