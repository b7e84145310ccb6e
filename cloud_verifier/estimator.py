"""Estimator: predicted seconds of a pass (one target forward), learned from those that were run.

Data: (load, seconds) of the latest passes, whole as they were, with what a declared profile made the server wait.
"""

from __future__ import annotations

from collections import deque
from statistics import median, quantiles

from speculation.pass_cost import Load

WINDOW = 128
"""Passes that are remembered: few enough to follow a machine that changes, enough for a median at every size."""
PRIOR_SLOPE = 0.175
"""Share of a one-token pass that one more token is taken to cost until two sizes were seen: T_q(5) = 1.7 T_q(1)."""
_WEIGHT = 8
"""Largest weight of one size, in passes: one far size determines the slope better than a hundred near ones."""
_FEW, _SEVERAL = 8, 3
"""Fewest passes that have a spread, and fewest of one size that count for it."""


class Estimator:
    """T_q as a constant plus a price per token: c + a N_linear of WISP, Eq. 19.

    Its two terms in the cached context are left out: a robot's prompts are all about as long, so that they are part of
    the constant. Medians per size make the fit robust; both coefficients are held at 0 or above, so that a prediction
    is never negative and grows with the tokens.
    """

    def __init__(self) -> None:
        self._passes: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._fit: tuple[float, float, float] | None = None

    def observe(self, load: Load, seconds: float) -> None:
        """Learn from a pass."""
        self._passes.append((max(load.rows, load.new, 1), max(0.0, seconds)))
        self._fit = None

    @property
    def known(self) -> bool:
        """Whether a pass was seen."""
        return bool(self._passes)

    def seconds(self, load: Load) -> float:
        """Return the predicted seconds of a pass; 0 before the first one was seen."""
        constant, slope, _ = self._fitted()
        return constant + slope * max(load.rows, load.new, 1)

    @property
    def spread(self) -> float:
        """How far, as a share, a slow pass (9 of 10 are faster) lies above a fast one (1 of 10 is) at equal tokens."""
        return self._fitted()[2]

    def _fitted(self) -> tuple[float, float, float]:
        if self._fit is None:
            constant, slope = _line(self._passes)
            self._fit = (constant, slope, _spread(self._passes))
        return self._fit


def _line(passes: deque[tuple[int, float]]) -> tuple[float, float]:
    """Return constant and slope through the medians of every size, by least squares, neither below 0."""
    sizes: dict[int, list[float]] = {}
    for tokens, seconds in passes:
        sizes.setdefault(tokens, []).append(seconds)
    if not sizes:
        return 0.0, 0.0
    points = [(n, median(seen), min(len(seen), _WEIGHT)) for n, seen in sizes.items()]
    if len(points) == 1:
        tokens, seconds, _ = points[0]
        unit = seconds / (1.0 + PRIOR_SLOPE * (tokens - 1))
        return unit * (1.0 - PRIOR_SLOPE), unit * PRIOR_SLOPE
    total = sum(weight for _, _, weight in points)
    mean_n = sum(weight * n for n, _, weight in points) / total
    mean_s = sum(weight * s for _, s, weight in points) / total
    across = sum(weight * (n - mean_n) * (s - mean_s) for n, s, weight in points)
    slope = max(0.0, across / sum(weight * (n - mean_n) ** 2 for n, _, weight in points))
    constant = mean_s - slope * mean_n
    return (constant, slope) if constant >= 0.0 else (0.0, mean_s / mean_n)


def _spread(passes: deque[tuple[int, float]]) -> float:
    """Return how uneven passes of equal size are; that sizes do not lie on a line is no unevenness."""
    sizes: dict[int, list[float]] = {}
    for tokens, seconds in passes:
        sizes.setdefault(tokens, []).append(seconds)
    shares = [
        each / middle
        for seen in sizes.values()
        if len(seen) >= _SEVERAL and (middle := median(seen)) > 0.0
        for each in seen
    ]
    if len(shares) < _FEW:
        return 0.0
    tenths = quantiles(shares, n=10, method="inclusive")
    return max(0.0, tenths[-1] / tenths[0] - 1.0) if tenths[0] > 0.0 else 0.0
