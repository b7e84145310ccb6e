from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.calibration import (
    BIN,
    BINS,
    DEPTHS,
    FIRST_FIT,
    GROWTH,
    LARGEST,
    MEMORY,
    RANKS,
    Calibration,
    fit_line,
)
from edge_drafter.tree import Proposals

CELLS = DEPTHS * BINS


class Recount:
    """The twin: keeps every answer, and counts them all anew for every fit."""

    def __init__(self) -> None:
        self.history: list[tuple[int, bool]] = []
        self.fits_at: list[int] = []
        self.halved_at: list[int] = []

    def weight(self, number: int) -> float:
        """An answer counts half for each time that all before were halved."""
        return 0.5 ** sum(number < end for end in self.halved_at)

    def learn(self, proposals: Proposals, ranked: int, depth: int, token: int) -> None:
        left = 1.0
        for place, (proposed, chance) in enumerate(proposals):
            rank = min(place, RANKS - 2) if place < ranked else RANKS - 1
            share = chance / left if left > 1e-12 else 0.5
            odds = math.log(share / (1.0 - share)) if 0.0 < share < 1.0 else math.copysign(99.0, share - 0.5)
            near = round((max(-LARGEST, min(LARGEST, odds)) + LARGEST) / BIN)
            self.history.append(((rank * DEPTHS + min(depth, DEPTHS) - 1) * BINS + near, proposed == token))
            left -= chance
            if proposed == token:
                return

    def fit(self) -> list[tuple[float, float, float]] | None:
        known = sum(self.weight(number) for number in range(self.fits_at[-1])) if self.fits_at else 0.0
        if len(self.history) - (self.fits_at[-1] if self.fits_at else 0) < max(FIRST_FIT, known / GROWTH):
            return None
        self.fits_at.append(len(self.history))
        asked, right = ([0.0] * (RANKS * CELLS) for _ in range(2))
        for number, (cell, hit) in enumerate(self.history):
            asked[cell] += self.weight(number)
            right[cell] += self.weight(number) * hit
        if sum(asked) > MEMORY:
            self.halved_at.append(len(self.history))
        each = (slice(rank * CELLS, (rank + 1) * CELLS) for rank in range(RANKS))
        return [fit_line(asked[some], right[some]) for some in each]


WEIGHTS = st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.2, 1.0, 30.0]), min_size=1, max_size=5)
PLACES = st.lists(st.tuples(WEIGHTS, st.floats(0.0, 1.0), st.integers(1, 12), st.integers(0, 6)), max_size=60)


def listed(weights: list[float], rest: float) -> Proposals:
    """Return proposals whose chances leave a share of `rest`."""
    total = sum(weights) or 1.0
    return tuple((token, (1.0 - rest) * weight / total) for token, weight in enumerate(weights))


@settings(deadline=None, max_examples=50)
@given(PLACES, st.integers(1, 4))
def test_any_history_gives_the_lines_of_a_recount_of_all_of_it(
    places: list[tuple[list[float], float, int, int]], ranked: int
) -> None:
    calibration, twin = Calibration(), Recount()
    for weights, rest, depth, token in places:
        proposals = listed(weights, rest)
        named, cells = calibration.chances(proposals, ranked, depth)
        calibration.learn(named, cells, token)
        twin.learn(proposals, ranked, depth, token)
        lines = twin.fit()
        assert calibration.fit() is (lines is not None)
        if lines is not None:
            for row in range(DEPTHS):
                expected = [(a + c * math.log2(row + 1), b) for a, b, c in lines]
                assert calibration._lines is not None
                assert np.array(calibration._lines[row]) == pytest.approx(np.array(expected))


@given(PLACES, st.lists(WEIGHTS, min_size=1), st.floats(0.0, 1.0), st.integers(1, 12))
@settings(deadline=None, max_examples=50)
def test_chances_are_shares_of_one_whole_and_keep_the_tokens(
    places: list[tuple[list[float], float, int, int]], others: list[list[float]], rest: float, depth: int
) -> None:
    calibration = Calibration()
    for weights, left, at, token in places:
        calibration.learn(*calibration.chances(listed(weights, left), 3, at), token)
        calibration.fit()
    for weights in others:
        proposals = listed(weights, rest)
        named, _ = calibration.chances(proposals, 3, depth)
        assert [token for token, _ in named] == [token for token, _ in proposals]
        assert all(0.0 <= chance <= 1.0 for _, chance in named) and sum(chance for _, chance in named) <= 1.0 + 1e-9
