"""Learns from every commit what a draft's probabilities are worth: how often the target went on with such tokens.

A draft's own probabilities order its tokens; how often these are right they need not show. Here every place is taken
apart into questions with yes or no for an answer: is the first proposal right (q_1); where it is not, is the second
(q_2); and so on. Whatever the q are, the chances q_1, (1 - q_1) q_2, ... of a place's children add up to at most 1. A
commit that gives the token behind a fed node answers all of them up to the right one, whether the draft was sent or
not, so the evidence does not depend on what was chosen. Each rank's q is corrected by a line in log-odds (Platt,
Probabilistic Outputs for Support Vector Machines, 1999) with a term for depth:

    logit q = a + b logit(draft's q) + c log2(depth)

The prior is a = c = 0, b = 1: the draft's own chances. The line is the maximum a posteriori for counts of answers in
bins, so it depends on the counts alone. Lines beat bins of their own here: they need a fifth of the answers.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edge_drafter.tree import Proposals

RANKS = 4
"""There is a line for the first, second and further ranks of the draft, and one for what something else proposed."""
DEPTHS = 8
"""Deeper places count as that deep."""
LARGEST = 10.0
"""Log-odds of the draft beyond this count as this: it is sure."""
BIN = 0.25
"""Width of a bin, nats of log-odds."""
BINS = round(2 * LARGEST / BIN) + 1
FIRST_FIT = 16
"""Answers of a commit before the first fit, and between two fits at least."""
GROWTH = 4
"""A fit waits for a quarter more of them: all fits together take no longer than a few."""
MEMORY = 4096
"""Answers after which all count half, so that what was learned of another scene fades."""

Numbers = npt.NDArray[np.float64]
Cells = tuple[int, ...]

_PRIOR: Numbers = np.array([0.0, 1.0, 0.0])
_PRECISION: Numbers = np.array([1.0 / deviation**2 for deviation in (1.0, 0.25, 0.25)])
"""They are the prior's, for a, b and c: a calibrated draft loses nothing in its first answers, a flat one learns in
three."""
_TINY = 1e-12
_MOST_STEPS = 50
_CENTRES: Numbers = np.linspace(-LARGEST, LARGEST, BINS)
_INPUTS: Numbers = np.stack(
    [each.ravel() for each in np.broadcast_arrays(1.0, _CENTRES, np.log2(np.arange(1, DEPTHS + 1))[:, None])], axis=1
)
"""1, log-odds and log2(depth) of each cell of one rank [DEPTHS x BINS, 3]."""


class Calibration:
    """Turns the chances that a draft gives its tokens into how often such tokens were right. For one pair of models
    and one way to sample."""

    def __init__(self) -> None:
        self._asked: Numbers = np.zeros((RANKS, DEPTHS * BINS))
        self._right: Numbers = np.zeros((RANKS, DEPTHS * BINS))
        self._known = 0.0
        """Answers that the latest fit counted."""
        self._waiting: list[tuple[int, bool]] = []
        """Cells and answers since the last fit."""
        self._lines: list[list[tuple[float, float]]] | None = None
        """Offset and slope by depth and rank; None before the first fit."""

    def chances(self, proposals: Proposals, ranked: int, depth: int) -> tuple[Proposals, Cells]:
        """Return a place's proposals with calibrated chances, and the cells that `learn` counts them in.

        The first `ranked` are the draft's own, likeliest first; others it was asked about. `depth` counts from 1 for
        the token behind the last committed one.
        """
        row = min(depth, DEPTHS) - 1
        lines = None if self._lines is None else self._lines[row]
        cells, found = list[int](), list[tuple[int, float]]()
        left = rest = 1.0
        for place, (token, chance) in enumerate(proposals):
            rank = min(place, RANKS - 2) if place < ranked else RANKS - 1
            odds = _log_odds(chance, left)
            cells.append((rank * DEPTHS + row) * BINS + round((odds + LARGEST) / BIN))
            left -= chance
            if lines is not None:
                offset, slope = lines[rank]
                share = 1.0 / (1.0 + math.exp(-offset - slope * odds))
                found.append((token, rest * share))
                rest *= 1.0 - share
        return (proposals if lines is None else tuple(found)), tuple(cells)

    def learn(self, proposals: Proposals, cells: Cells, token: int) -> None:
        """Take the token that was committed where these proposals stood."""
        for (proposed, _), cell in zip(proposals, cells, strict=True):
            self._waiting.append((cell, proposed == token))
            if proposed == token:
                break

    def fit(self) -> bool:
        """Fit the lines where enough was learned since the last time, and return whether that was so."""
        if len(self._waiting) < max(FIRST_FIT, self._known / GROWTH):
            return False
        cells, right = zip(*self._waiting, strict=True)
        np.add.at(self._asked.reshape(-1), list(cells), 1.0)
        np.add.at(self._right.reshape(-1), list(cells), np.array(right, dtype=np.float64))
        self._waiting.clear()
        fits = [fit_line(asked, right) for asked, right in zip(self._asked, self._right, strict=True)]
        self._lines = [[(a + c * math.log2(depth), b) for a, b, c in fits] for depth in range(1, DEPTHS + 1)]
        self._known = float(self._asked.sum())
        if self._known > MEMORY:
            self._asked /= 2.0
            self._right /= 2.0
            self._known /= 2.0
        return True


def fit_line(asked: Numbers, right: Numbers) -> tuple[float, float, float]:
    """Return a, b and c of one rank: the maximum a posteriori for its counts [DEPTHS x BINS], by Newton's method.

    The posterior is concave, so a step that is halved until it gains finds the maximum from anywhere.
    """
    (seen,) = asked.nonzero()
    inputs, counts, hits = _INPUTS[seen], asked[seen], right[seen]
    line, loss = _PRIOR, _loss(_PRIOR, inputs, counts, hits)
    for _ in range(_MOST_STEPS):
        share = 0.5 + 0.5 * np.tanh(0.5 * (inputs @ line))
        slope = inputs.T @ (counts * share - hits) + _PRECISION * (line - _PRIOR)
        curve = (inputs.T * (counts * share * (1.0 - share))) @ inputs + np.diag(_PRECISION)
        step = np.linalg.solve(curve, slope)
        while (after := _loss(line - step, inputs, counts, hits)) > loss and np.abs(step).max() > _TINY:
            step = step / 2.0
        if after >= loss:
            break
        line, loss = line - step, after
    return float(line[0]), float(line[1]), float(line[2])


def _loss(line: Numbers, inputs: Numbers, counts: Numbers, hits: Numbers) -> float:
    """Return the negative logarithm of the posterior, but for a constant."""
    odds, off = inputs @ line, line - _PRIOR
    return float(counts @ np.logaddexp(0.0, odds) - hits @ odds + 0.5 * (_PRECISION * off) @ off)


def _log_odds(chance: float, left: float) -> float:
    """Return the log-odds of a token that is right with `chance`, where those before, which leave `left`, are not.

    0 where rounding has left nothing: nothing is known.
    """
    if left <= _TINY:
        return 0.0
    if chance <= 0.0:
        return -LARGEST
    if chance >= left:
        return LARGEST
    odds = math.log(chance / (left - chance))
    return LARGEST if odds > LARGEST else -LARGEST if odds < -LARGEST else odds
