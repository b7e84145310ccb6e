"""Estimator: predicted seconds of a pass (one target forward), learned from those that were run.

Data: (load, seconds) of the latest passes, whole as they were, with what a declared profile made the server wait.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median, quantiles

import numpy as np

from speculation.pass_cost import NO_LOAD, Floats, Load, PassCost, design, nonnegative_least_squares

WINDOW = 128
"""Passes that are remembered: few enough to follow a machine that changes, enough for a median at every size."""
PRIOR_SLOPE = 0.175
"""Share of a one-token pass that one more token is taken to cost until two sizes were seen: T_q(5) = 1.7 T_q(1)."""
_WEIGHT = 8
"""Largest weight of one size, in passes: one far size determines the slope better than a hundred near ones."""
_FEW, _SEVERAL = 8, 3
"""Fewest passes that have a spread, and fewest of one size that count for it."""
_REFIT = 16
"""Passes are fitted again when one in so many is new: policies predict thousands of times a pass, but fits cost too."""
_APART = 0.1
"""A term is fitted where the terms before it leave so much of its size unexplained."""
_BETTER = 0.8
"""All terms are taken where their squared error is below this share of the line's: noise alone would not do that."""
_SHAPE = 0.25
"""Weight, in passes, of a profile's shape: what passes that are all alike leave open."""
_DRAFTS = 32
"""The median is taken of so many forwards, and of so many prefills, of a draft model."""
_NOTHING = PassCost(0.0, 0.0, 0.0, 0.0, causal=True)


@dataclass(frozen=True)
class _Pass:
    tokens: int
    """The size by which a line predicts."""
    kind: tuple[int, int, int]
    """Rows, tokens and, to within 9 %, cached tokens: passes of one kind take equally long."""
    load: Load
    seconds: float


class Estimator:
    """T_q by the additive model of WISP, Eq. 19, as much of it as the passes that were seen tell apart.

    With a measured `profile` its shape is taken, and how much of it and which constant is learned. Without one, it is
    a constant plus a price per token (robots' prompts are all about as long, so that their cost is part of these), or
    all four terms once loads differ enough. Medians make either robust. Every coefficient is held at 0 or above, so
    that a prediction is never negative and grows with every term.
    """

    def __init__(self, profile: PassCost | None = None) -> None:
        self._profile = profile
        self._passes: deque[_Pass] = deque(maxlen=WINDOW)
        self._kinds: set[tuple[int, int, int]] = set()
        """Those of the passes that were fitted."""
        self._unfitted = 0
        self._cost = profile or _NOTHING
        self._spread = 0.0
        self._stale = False

    def observe(self, load: Load, seconds: float) -> None:
        """Learn from a pass."""
        each = _Pass(
            _tokens(load), (load.rows, load.new, round(8.0 * math.log2(64 + load.cached))), load, max(0.0, seconds)
        )
        self._passes.append(each)
        self._unfitted += 1
        if each.kind not in self._kinds or self._unfitted * _REFIT >= len(self._passes):
            self._stale = True

    @property
    def known(self) -> bool:
        """Whether there is anything to predict by: a profile, or a pass that was seen."""
        return self._profile is not None or bool(self._passes)

    @property
    def priced(self) -> bool:
        """Whether it is known what further tokens cost: from a profile, or from passes of more than one size."""
        return self._profile is not None or len({each.tokens for each in self._passes}) > 1

    @property
    def cost(self) -> PassCost:
        """What passes cost by all that is known; 0 before the first one was seen."""
        if self._stale:
            self._fit()
        return self._cost

    def seconds(self, load: Load) -> float:
        """Return the predicted seconds of a pass; 0 before the first one was seen. Each row counts a token at least."""
        if self._stale:
            self._fit()
        cost = self._cost
        tokens = load.new if load.new >= load.rows else load.rows
        return (
            cost.constant_s
            + cost.token_s * (tokens or 1)
            + cost.interaction_s * (load.scored if cost.causal else load.interactions)
            + cost.cached_s * load.cached
        )

    def parts_s(self, row: Load) -> tuple[float, float]:
        """Return the seconds of a pass over a row that are its constant, and those that such a row adds to a pass."""
        one, two = self.seconds(row), self.seconds(row + row)
        return max(0.0, 2.0 * one - two), max(0.0, two - one)

    def largest(self, most: int, limit_s: float, cached: int, beside: Load = NO_LOAD) -> int:
        """Return the most tokens, at most `most`, of one row that fit into a pass of `limit_s` seconds, or 0."""
        sizes = range(1, most + 1)
        return bisect_right(sizes, limit_s, key=lambda size: self.seconds(beside + Load.row(size, cached)))

    @property
    def spread(self) -> float:
        """How far, as a share, a slow pass (9 of 10 are faster) lies above a fast one (1 of 10 is) of its kind."""
        if self._stale:
            self._fit()
        return self._spread

    def _fit(self) -> None:
        kinds: dict[tuple[int, int, int], list[_Pass]] = {}
        for each in self._passes:
            kinds.setdefault(each.kind, []).append(each)
        self._stale, self._unfitted, self._kinds = False, 0, set(kinds)
        if self._profile is not None:
            self._cost = _scaled(self._profile, *_typical(kinds.values(), self._profile.causal))
        else:
            line = _line(self._passes)
            self._cost = _all_terms(line, *_typical(kinds.values(), causal=True)) or line
        self._spread = _spread(kinds.values())


class DraftCosts:
    """Learns how long drafting beside the target takes, in seconds.

    By medians of a draft's forwards, by their turn, and of the draft model's prefills. A tree's first forward feeds a
    token or two, the next as many as the tree may hold: each turn has its own median.
    """

    def __init__(self) -> None:
        self._forwards: list[deque[float]] = []
        self._prefills: deque[float] = deque(maxlen=_DRAFTS)

    def forward(self, turn: int, seconds: float) -> None:
        """Learn from the forward that made level `turn` of a draft, 1 the first."""
        while len(self._forwards) < turn:
            self._forwards.append(deque(maxlen=_DRAFTS))
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


@dataclass
class Costs:
    """Predicted seconds of each kind of work, learned from what was run."""

    passes: Estimator = field(default_factory=Estimator)
    """Estimator of target forwards."""
    images: Estimator = field(default_factory=Estimator)
    """Estimator of encoding images, over `Load.row(image tokens)`."""
    drafts: DraftCosts | None = None
    """Costs of the draft model beside the target; None: there is none."""


def _tokens(load: Load) -> int:
    return max(load.rows, load.new, 1)


def _typical(kinds: Iterable[list[_Pass]], causal: bool) -> tuple[Floats, Floats, Floats]:
    """Return the columns [n, 4] of a typical pass of every kind, the one of the median time, its seconds and weight."""
    passes = [(sorted(seen, key=lambda each: each.seconds)[(len(seen) - 1) // 2], len(seen)) for seen in kinds]
    columns = design([each.load for each, _ in passes], causal)
    columns[:, 0] = [each.tokens for each, _ in passes]
    seconds = np.array([each.seconds for each, _ in passes])
    # A kind counts by its relative error, but a time of nothing must not count for ever.
    seconds = np.maximum(seconds, max(1e-3 * float(np.median(seconds)), 1e-9))
    weights = np.sqrt([min(number, _WEIGHT) for _, number in passes])
    return columns, seconds, weights


def _scaled(profile: PassCost, columns: Floats, seconds: Floats, weights: Floats) -> PassCost:
    """Return s x (what the load costs by the profile) + k, s and k at least 0, of least squared relative error.

    What passes leave open (all alike, they have one time and no slope) is as in the profile: k = s x its constant.
    """
    varying = columns[:, :3] @ [profile.token_s, profile.interaction_s, profile.cached_s]
    rows = np.stack([varying, np.ones(len(varying))], axis=1) * (weights / seconds)[:, None]
    shape = np.array([[profile.constant_s, -1.0]]) * math.sqrt(_SHAPE) / float(np.median(seconds))
    scale, constant = nonnegative_least_squares(np.concatenate([rows, shape]), np.append(weights, 0.0)).tolist()
    return replace(profile.scaled(scale), constant_s=constant)


def _all_terms(line: PassCost, columns: Floats, seconds: Floats, weights: Floats) -> PassCost | None:
    """Return all terms that the loads tell apart, None where these are too few or explain no more than the line.

    Terms come in the order constant, tokens, cached, interactions: prompts that are all alike make interactions a
    multiple of the tokens, and one robot alone has nearly the same context in every pass.
    """
    if len(seconds) < 2 * columns.shape[1]:
        return None
    order = [3, 0, 2, 1]
    sizes = np.linalg.norm(columns, axis=0)
    left = np.abs(np.diagonal(np.linalg.qr(columns[:, order] / np.where(sizes > 0.0, sizes, 1.0)[order], mode="r")))
    used = [term for term, residual in zip(order, left.tolist(), strict=True) if residual > _APART]
    if len(used) <= 2:
        return None
    scaled = columns * (weights / seconds)[:, None]
    found = np.zeros(4)
    found[used] = nonnegative_least_squares(scaled[:, used], weights)
    before = [line.token_s, line.interaction_s, line.cached_s, line.constant_s]
    error, line_error = (float(np.sum((scaled @ each - weights) ** 2)) for each in (found, before))
    return PassCost.of(found, causal=True) if error < _BETTER * line_error else None


def _line(passes: Iterable[_Pass]) -> PassCost:
    """Return constant and price per token through the medians of every size, by least squares, neither below 0."""
    sizes: dict[int, list[float]] = {}
    for each in passes:
        sizes.setdefault(each.tokens, []).append(each.seconds)
    points = [(n, median(seen), min(len(seen), _WEIGHT)) for n, seen in sizes.items()]
    if len(points) == 1:
        tokens, seconds, _ = points[0]
        unit = seconds / (1.0 + PRIOR_SLOPE * (tokens - 1))
        return PassCost(unit * PRIOR_SLOPE, 0.0, 0.0, unit * (1.0 - PRIOR_SLOPE))
    columns, medians = np.array([(n, 1.0) for n, _, _ in points]), np.array([middle for _, middle, _ in points])
    weights = np.sqrt([weight for _, _, weight in points])
    slope, constant = nonnegative_least_squares(columns * weights[:, None], medians * weights).tolist()
    return PassCost(slope, 0.0, 0.0, constant)


def _spread(kinds: Iterable[list[_Pass]]) -> float:
    """Return how uneven passes of one kind are; that kinds are not as predicted is no unevenness."""
    shares = [
        each.seconds / middle
        for seen in kinds
        if len(seen) >= _SEVERAL and (middle := median(each.seconds for each in seen)) > 0.0
        for each in seen
    ]
    if len(shares) < _FEW:
        return 0.0
    tenths = quantiles(shares, n=10, method="inclusive")
    return max(0.0, tenths[-1] / tenths[0] - 1.0) if tenths[0] > 0.0 else 0.0
