"""The exact search against brute force on small cases, with the formula written out for one verification at a time."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.exit_choice.exact_search import Candidates, select


@st.composite
def problems(draw: st.DrawFn) -> Candidates:
    """Return up to six candidates with verdicts that hang together, leads that fall and costs that differ."""
    count = draw(st.integers(1, 6))
    dice = np.random.default_rng(draw(st.integers(0, 2**20)))
    verifications = draw(st.integers(1, 25))
    right = dice.random((count, verifications)) < dice.random(verifications) * draw(st.floats(0.2, 2.0))
    lead = np.sort(dice.random(count))[::-1]
    return Candidates(
        tuple(range(count)),
        right,
        dice.random(verifications) < 0.2,
        tuple(lead.tolist()),
        tuple((0.2 * dice.random(count)).tolist()),
        1.0,
        draw(st.floats(0.05, 1.0)),
    )


def saved_in_one(candidates: Candidates, places: tuple[int, ...], verification: int) -> float:
    """When would the next draft stand, without exits and with them? The clock of one round, event by event."""
    without = candidates.verify_s + candidates.draft_s
    verdict_at = candidates.verify_s + sum(candidates.cost_s[place] for place in places)
    begun = verdict_at
    if candidates.ended[verification]:
        return candidates.verify_s - verdict_at
    spent = 0.0
    for place in places:
        spent += candidates.cost_s[place]
        if candidates.right[place, verification]:
            begun = min(begun, candidates.verify_s - candidates.lead_s[place] + spent)
    return without - max(begun + candidates.draft_s, verdict_at)


def brute_force(candidates: Candidates, most: int, budget: float) -> dict[int, float]:
    """Return the most that can be saved with each number of exits."""
    best: dict[int, float] = {}
    for size in range(most + 1):
        for places in combinations(range(len(candidates.layers)), size):
            if sum(candidates.cost_s[place] for place in places) <= budget * candidates.verify_s * (1 + 1e-9):
                each = [saved_in_one(candidates, places, number) for number in range(len(candidates.ended))]
                best[size] = max(best.get(size, -np.inf), float(np.mean(each)))
    return best


@settings(deadline=None, max_examples=50)
@given(candidates=problems(), most=st.integers(1, 6), budget=st.floats(0.02, 1.0))
def test_the_search_finds_what_brute_force_finds(candidates: Candidates, most: int, budget: float) -> None:
    choices = select(candidates, most, budget)
    expected = brute_force(candidates, min(most, len(candidates.layers)), budget)
    assert {len(choice.layers): pytest.approx(choice.saved_s, abs=1e-9) for choice in choices} == expected
    for choice in choices:
        assert choice.cost_s <= budget * candidates.verify_s * (1 + 1e-6)
        assert list(choice.layers) == sorted(set(choice.layers))
