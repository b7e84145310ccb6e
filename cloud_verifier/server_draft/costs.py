"""Learns from what was run how long drafting beside the target takes, in seconds."""

from __future__ import annotations

from collections import deque
from statistics import median

_KEPT = 32


class DraftCosts:
    """Medians of a draft's forwards, by their turn, and of the draft model's prefills.

    A tree's first forward feeds a token or two, the next as many as the tree may hold: each turn has its own median.
    """

    def __init__(self) -> None:
        self._forwards: list[deque[float]] = []
        self._prefills: deque[float] = deque(maxlen=_KEPT)

    def forward(self, turn: int, seconds: float) -> None:
        """Learn from the forward that made level `turn` of a draft, 1 the first."""
        while len(self._forwards) < turn:
            self._forwards.append(deque(maxlen=_KEPT))
        self._forwards[turn - 1].append(seconds)

    def prefill(self, seconds: float) -> None:
        """Learn from a prefill."""
        self._prefills.append(seconds)

    @property
    def prefill_s(self) -> float | None:
        """Seconds of a prefill; None before the first."""
        return median(self._prefills) if self._prefills else None

    def forwards_s(self, depth: int) -> float | None:
        """Return the seconds of drafting so many levels; None before the first draft.

        Deeper levels than were ever drafted take as long as the deepest of these.
        """
        if not self._forwards:
            return None
        known = [median(turn) for turn in self._forwards[:depth]]
        return sum(known) + (depth - len(known)) * known[-1]

    def forward_s(self, turn: int) -> float | None:
        """Return the seconds of the forward that makes level `turn`, 1 the first; None before the first draft."""
        if not self._forwards:
            return None
        return median(self._forwards[min(turn, len(self._forwards)) - 1])
