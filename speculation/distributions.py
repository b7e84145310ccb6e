"""The distributions of one draft forward; each pass over the vocabulary is made once, for all rows together."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating]
Rows = npt.NDArray[np.float64]
_TAKEN = -1.0
"""Below every weight that is left."""


class Distributions:
    """The softmax of rows of logits [n, vocabulary]; the results of a row do not depend on the others.

    shifted: logits less their row's largest. weights: their exponentials, the likeliest token's is 1. totals: the sum
    of each row's weights. All float64.
    """

    def __init__(self, logits: Logits) -> None:
        self.logits = logits
        rows = np.asarray(logits, dtype=np.float64)
        self._each = np.arange(len(rows))
        self._best = rows.argmax(axis=1)
        self.shifted: Rows = rows - rows[self._each, self._best][:, None]
        self.weights: Rows = np.exp(self.shifted)
        self.totals: list[float] = np.add.reduce(self.weights, axis=1).tolist()
        self._ranks: list[tuple[list[int], list[float]]] = [(self._best.tolist(), [1.0] * len(rows))]

    @property
    def size(self) -> int:
        """How many tokens there are."""
        size: int = self.weights.shape[1]
        return size

    def rank(self, place: int) -> tuple[list[int], list[float]]:
        """Return each row's token at a place, 0 for the likeliest, and its weight. Of equals the lower comes first."""
        while len(self._ranks) <= place:
            found = self._left.argmax(axis=1)
            tokens: list[int] = found.tolist()
            weights: list[float] = self._left[self._each, found].tolist()
            self._left[self._each, found] = _TAKEN
            self._ranks.append((tokens, weights))
        return self._ranks[place]

    @cached_property
    def _left(self) -> Rows:
        left: Rows = self.weights.copy()
        left[self._each, self._best] = _TAKEN
        return left


def products(one: Rows, other: Rows) -> list[float]:
    """Return the inner product of each row of one [n, m] with the same row of the other."""
    found: list[float] = np.matmul(one[:, None], other[:, :, None])[:, 0, 0].tolist()
    return found
