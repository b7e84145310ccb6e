"""Finds the replica that a robot belongs to, by rendezvous hashing (Thaler and Ravishankar 1998) with bounded loads.

A robot that comes back is sent where its keys and values are; a replica that comes or goes moves few others; and none
gets more than BOUND times its share (Mirrokni et al., arXiv 1608.01350).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

BOUND = 1.25
"""A replica takes at most so many times its share."""


def preferred(key: str, names: Iterable[str]) -> list[str]:
    """Return the replicas in the order in which a robot of this key belongs to them."""
    return sorted(names, key=lambda name: hashlib.blake2b(f"{name} {key}".encode(), digest_size=8).digest())


def limits(robots: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return how many of so many robots each replica takes at most, by its weight, which is above 0."""
    whole = sum(weights.values())
    return {name: math.ceil(BOUND * robots * weight / whole) for name, weight in weights.items()}


def with_room(key: str, loads: Mapping[str, int], weights: Mapping[str, float]) -> list[str]:
    """Return the replicas that may take one robot more than their loads, the one that it belongs to first.

    There is always one, if there is a replica.
    """
    most = limits(1 + sum(loads.values()), weights)
    return [name for name in preferred(key, loads) if loads[name] < most[name]]
