"""Chooses how many rows a forward takes and how long a ready one waits for company, by predicted costs of passes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

from cloud_verifier.estimator import Estimator
from speculation.pass_cost import Load

GROWTH = 0.1
"""Least share by which twice the rows must raise the tokens per second: beyond it rows only make each other wait."""
UNKNOWN_BATCH = 8
"""Rows of a forward while nobody knows what further ones cost: forwards of one row would never show it."""
_TYPICAL = Load.row(5, 300)
"""A draft of four tokens behind a frame and its prompt: what a row is taken for until some were seen."""
_BATCHES = 32


def best_batch(estimates: Estimator, row: Load, most: int) -> int:
    """Return the rows, 1 to `most`, beyond which twice as many raise predicted tokens per second by less than GROWTH.

    With T(B) = c + B u seconds for B rows like `row`, twice the rows bring c / (c + 2 B u) more.
    """
    if not estimates.priced:
        return min(UNKNOWN_BATCH, most)
    constant, more = estimates.parts_s(row)
    enough = constant * (1.0 / GROWTH - 1.0) / 2.0
    return max(1, math.ceil(enough / more)) if enough < more * most else most


def best_wait(estimates: Estimator, row: Load, gap_s: float) -> float:
    """Return how long a ready row should wait for another to share its forward, where they come every `gap_s` seconds.

    A row that starts at once ends after T(1), one that comes meanwhile after 2 T(1); together they end `gap_s` + T(2)
    from now. Waiting pays on average where gap_s < (3 T(1) - 2 T(2)) / 2 = (c - u) / 2, and is given up after as long.
    """
    constant, more = estimates.parts_s(row)
    longest = (constant - more) / 2.0
    return longest if gap_s < longest else 0.0


class Traffic:
    """What the latest forwards were made of: a typical row, and how fast rows come."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Load, float]] = deque(maxlen=_BATCHES)

    def ran(self, rows: Collection[Load], now: float) -> None:
        """A forward of these rows starts."""
        if rows:
            self._batches.append((Load.total(rows), now))

    @property
    def row(self) -> Load:
        """The mean row of the latest forwards."""
        total = Load.total(load for load, _ in self._batches)
        return total.mean if total.rows else _TYPICAL

    @property
    def gap_s(self) -> float:
        """Mean seconds from one row to the next; for ever where that is not known yet."""
        rows = sum(load.rows for load, _ in list(self._batches)[1:])
        return (self._batches[-1][1] - self._batches[0][1]) / rows if rows else float("inf")
