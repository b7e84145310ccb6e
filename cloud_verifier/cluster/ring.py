"""Which replica a robot belongs to: consistent hashing with bounded loads (Mirrokni et al., arXiv 1608.01350).

A robot that comes back is sent where its keys and values are; a replica that comes or goes moves few others; and none
gets more than `bound` times its share.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping

POINTS = 64
"""Places of a replica on the circle."""
BOUND = 1.25
"""A replica takes at most so many times its share."""


class Ring:
    """Replicas, by name, on a circle of hashes."""

    def __init__(self, names: Iterable[str], points: int = POINTS) -> None:
        self.names = frozenset(names)
        ring = sorted((_place(f"{name} {point}"), name) for name in self.names for point in range(points))
        self._places = [place for place, _ in ring]
        self._owners = [name for _, name in ring]

    def clockwise(self, key: str) -> Iterator[str]:
        """Yield every replica once, in the order in which the circle has them from the key on."""
        begin = bisect.bisect(self._places, _place(key))
        left = set(self.names)
        for at in range(begin, begin + len(self._owners)):
            name = self._owners[at % len(self._owners)]
            if name in left:
                left.remove(name)
                yield name
            if not left:
                return

    def with_room(
        self, key: str, loads: Mapping[str, float], weights: Mapping[str, float] | None = None, bound: float = BOUND
    ) -> Iterator[str]:
        """Yield the replicas that may take one robot more, the one that it belongs to first.

        loads: robots on each, 0 where there is no entry. weights: shares of all robots, in any unit; by default equal.
        There is always one, for a `bound` of 1 or more; raises ValueError below that.
        """
        if not bound >= 1.0:
            raise ValueError(f"bound {bound} is below 1: not all robots find room")
        most = self.limits(1.0 + sum(loads.get(name, 0.0) for name in self.names), weights, bound)
        for name in self.clockwise(key):
            if loads.get(name, 0.0) < most[name]:
                yield name

    def limits(self, robots: float, weights: Mapping[str, float] | None = None, bound: float = BOUND) -> dict[str, int]:
        """Return how many of so many robots each replica takes at most, by its weight."""
        weight = {name: 1.0 if weights is None else max(0.0, weights.get(name, 0.0)) for name in self.names}
        whole = sum(weight.values())
        if not whole > 0.0:
            weight, whole = dict.fromkeys(self.names, 1.0), float(len(self.names))
        return {name: math.ceil(bound * robots * weight[name] / whole) for name in self.names}


def _place(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
