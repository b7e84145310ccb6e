"""Distributions over a vocabulary, or the heads of them, as they travel (`wire.Masses`)."""

from __future__ import annotations

import numpy as np

from speculation.sampling.distribution import Distribution
from speculation.sampling.noise import Floats, Tokens
from speculation.wire import Masses


def head(target: Distribution, keep: int) -> Tokens:
    """Return the `keep` likeliest tokens that may be drawn, ascending; of equals the lower ones."""
    weights = target.weights
    if keep >= len(weights):
        return np.flatnonzero(weights)
    least = np.partition(weights, -keep)[-keep]
    above = np.flatnonzero(weights > least)
    level = np.flatnonzero(weights == least)[: keep - len(above)]
    return np.sort(np.concatenate([above, level] if least > 0.0 else [above]))


def pack(target: Distribution, keep: int = 0) -> Masses:
    """Return a distribution, or the `keep` likeliest tokens of it, for the wire.

    Tokens that may not be drawn are left out where that is shorter.
    """
    weights = target.weights
    ids = head(target, keep) if keep else np.flatnonzero(weights)
    whole = np.count_nonzero(weights) == len(ids)
    if whole and 2 * len(ids) >= len(weights):
        return Masses(weights.astype("<f4").tobytes(), target.total)
    tail = 0.0 if whole else max(0.0, 1.0 - float(weights[ids].sum(dtype=np.float64)) / target.total)
    # So small a tail rounds to nothing, but it is there.
    tail = tail if whole else max(tail, float(np.finfo(np.float64).tiny))
    return Masses(weights[ids].astype("<f4").tobytes(), target.total, ids.astype("<u4").tobytes(), tail)


def listed(masses: Masses, vocabulary: int, whole: bool = True) -> tuple[Tokens, Floats]:
    """Return the tokens that masses name and their weights.

    Raises ValueError for tokens or weights that cannot be, and for a part of a distribution that must be whole.
    """
    if whole and masses.tail:
        raise ValueError(f"Masses.tail is {masses.tail:g}: this is a part of a distribution")
    values = np.frombuffer(masses.weights, dtype="<f4").astype(np.float64)
    ids = np.frombuffer(masses.ids, dtype="<u4").astype(np.int64) if masses.ids else np.arange(len(values))
    if not len(ids) or (len(ids) != vocabulary and not masses.ids) or ids.max() >= vocabulary:
        raise ValueError(f"Masses.ids: {len(ids)} tokens are no part of a vocabulary of {vocabulary}")
    if not (np.isfinite(values).all() and (values >= 0.0).all() and values.any()):
        raise ValueError("Masses.weights must be finite and not negative, and not all 0")
    return ids, values


def unpack(masses: Masses, vocabulary: int) -> Distribution:
    """Return a distribution that came over the wire whole. Raises ValueError as `listed`."""
    ids, values = listed(masses, vocabulary)
    weights = np.zeros(vocabulary, dtype=np.float32)
    weights[ids] = values
    return Distribution(weights, masses.total)
