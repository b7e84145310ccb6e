"""Emulates the one-way delay that a device profile declares."""

from __future__ import annotations

import heapq
import itertools


class DelayLine:
    """Holds each payload for `delay_s` seconds, in order."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._held: list[tuple[float, int, bytes]] = []
        self._count = itertools.count()

    def put(self, payload: bytes, now: float) -> None:
        """Hold a payload from `now`."""
        heapq.heappush(self._held, (now + self._delay_s, next(self._count), payload))

    def take(self, now: float) -> bytes | None:
        """Return the next payload that is due, None where none is."""
        return heapq.heappop(self._held)[2] if self._held and self._held[0][0] <= now else None

    @property
    def due(self) -> float:
        """When the next payload is due; infinite where there is none."""
        return self._held[0][0] if self._held else float("inf")
