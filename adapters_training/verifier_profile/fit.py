"""Fit of a cost to measured passes, and how good it is: bootstraps, folds, the figures of WISP's Table 7."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculation.cost_profile import Intervals, Quality
from speculation.pass_cost import COEFFICIENTS, Floats, Load, PassCost

FOLDS = 5
_FEATURES = 3


def quality(cost: PassCost, loads: Sequence[Load], seconds: Floats) -> Quality:
    """Return how well a cost predicts passes of these times [n], n above 1."""
    off = np.array([cost.seconds(load) for load in loads]) - seconds
    count = len(seconds)
    r2 = 1.0 - float(off @ off) / float(np.sum((seconds - seconds.mean()) ** 2))
    return Quality(
        samples=count,
        r2=r2,
        adjusted_r2=1.0 - (1.0 - r2) * (count - 1) / max(1, count - _FEATURES - 1),
        rmse_s=float(np.sqrt(np.mean(off**2))),
        mae_s=float(np.mean(np.abs(off))),
        mape=float(np.mean(np.abs(off) / seconds)),
        max_error_s=float(np.abs(off).max()),
    )


def intervals(loads: Sequence[Load], seconds: Floats, bootstraps: int, seed: int) -> Intervals:
    """Return the 2.5th and 97.5th percentiles of each coefficient over fits to resampled passes."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(bootstraps):
        chosen = rng.integers(0, len(loads), len(loads))
        cost = PassCost.fit([loads[index] for index in chosen], seconds[chosen])
        found.append([getattr(cost, name) for name in COEFFICIENTS])
    low, high = np.percentile(np.array(found), (2.5, 97.5), axis=0).tolist()
    return Intervals(**dict(zip(COEFFICIENTS, zip(low, high, strict=True), strict=True)))


def folds_r2(loads: Sequence[Load], seconds: Floats, seed: int) -> tuple[float, ...]:
    """Return R2 of each of five random parts, predicted by a fit to the others."""
    found = []
    for part in np.array_split(np.random.default_rng(seed).permutation(len(loads)), FOLDS):
        rest = np.setdiff1d(np.arange(len(loads)), part)
        cost = PassCost.fit([loads[index] for index in rest], seconds[rest])
        found.append(quality(cost, [loads[index] for index in part], seconds[part]).r2)
    return tuple(found)
