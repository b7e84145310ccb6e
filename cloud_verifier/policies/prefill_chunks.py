"""Chunks: how much of some prefills fits into a forward, for any policy."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cloud_verifier.estimator import Estimator
from cloud_verifier.step import Step
from speculation.pass_cost import Load

LEAST = 16
"""Tokens below which a chunk, but for a prompt's rest, is not worth its share of a forward: a block of the cache."""


def fit_chunks(
    prefills: Iterable[Step], beside: Load, estimates: Estimator, limit_s: float, most: int = 0
) -> dict[Step, int]:
    """Return how many tokens of each prefill, in this order, join a forward that computes `beside`.

    As many as it is predicted to take within `limit_s` seconds and, with `most`, no more than that number in all. Never
    none: what comes first gets `LEAST` tokens, or what it has left, whatever they take.
    """
    chunks: dict[Step, int] = {}
    load, room = beside, most or math.inf
    for step in prefills:
        fits = _largest(step, load, estimates, limit_s)
        if fits < min(LEAST, step.prefill.left):
            fits = 0 if chunks else min(LEAST, step.prefill.left)
        size = int(min(fits, room))
        if size:
            chunks[step], room, load = size, room - size, load + step.prefill.load(size)
    return chunks


def _largest(step: Step, load: Load, estimates: Estimator, limit_s: float) -> int:
    """Return the most tokens of a prefill that fit; predictions grow with the tokens."""
    low, high = 0, step.prefill.left
    while low < high:
        size = (low + high + 1) // 2
        if estimates.seconds(load + step.prefill.load(size)) <= limit_s:
            low = size
        else:
            high = size - 1
    return low
