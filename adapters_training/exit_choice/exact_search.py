"""Which few exits to serve: the set that saves most time, found exactly, from every candidate's recorded verdicts.

Time saved. A target forward takes T_q and layer l is done `lead(l)` before its end; exit i adds `cost(i)` to it. The
edge drafts the next gamma tokens in gamma T_p. Without exits it begins when the verdict comes, so its next draft stands
at T_q + gamma T_p (the way T_c is the same for all that comes down). With a set S of exits, of which f is the first
that commits what the target will commit, it begins at T_q - lead(f) + the cost of the exits up to f, and the draft
cannot leave before the verdict, at T_q + the cost of all. The difference is

    saved(S) = min(lead(f) + sum of cost(i) for i in S behind f, gamma T_p) - sum of cost(i) for all i in S

and where no exit is right, or the answer ends and nothing is left to draft, only the costs remain: - sum of cost(i).
A right exit behind another right one so adds nothing but its cost. The expectation is the mean over real verifications,
in each of which it is known which exits were right together; nothing is taken as independent. It is measured against an
edge that only waits while a draft is verified (mode `sd`): one that guesses well without exits gains less from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """What a selection chooses from, exits in ascending order of their layers and falling of their leads."""

    layers: tuple[int, ...]
    right: npt.NDArray[np.bool_]
    """[L, V], whether exit l committed the target's tokens in verification v."""
    ended: npt.NDArray[np.bool_]
    """[V], whether the answer ended there."""
    lead_s: tuple[float, ...]
    """[L], by how much a layer is done before the verdict."""
    cost_s: tuple[float, ...]
    """[L], what an exit adds to a verification."""
    verify_s: float
    """T_q: seconds that a target forward takes."""
    draft_s: float
    """gamma T_p: seconds that a whole draft takes."""


@dataclass(frozen=True)
class Choice:
    """A set of exits: expected seconds saved and cost per verification, and the share in which one of them is right."""

    layers: tuple[int, ...]
    saved_s: float
    cost_s: float
    right: float


def select(candidates: Candidates, most: int, budget: float) -> list[Choice]:
    """Return the best set of each size from 0 to `most` that adds at most `budget` (share of a verification).

    Exact: no set is left out that could be better. Sizes for which none is cheap enough are left out. Of equally good
    sets one is taken. Raises ValueError for a size or budget out of range.
    """
    if most < 1 or not budget > 0.0:
        raise ValueError(f"up to {most} exits within {budget} of a verification: both must be positive")
    limit = budget * candidates.verify_s * (1.0 + 1e-9)
    best = _Search(candidates, min(most, len(candidates.layers)), limit).run()
    return [choice_of(candidates, best[size][1]) for size in sorted(best)]


def first_right(candidates: Candidates, layers: Sequence[int]) -> Floats:
    """Return how often each of the exits at `layers` (ascending) is the first right one of them, among the
    verifications behind which something is left to draft."""
    places = [candidates.layers.index(layer) for layer in layers]
    right = candidates.right[places][:, ~candidates.ended]
    first = right & (np.cumsum(right, axis=0) == 1)
    rates: Floats = first.mean(axis=1) if right.shape[1] else np.zeros(len(places))
    return rates


class _Search:
    """Branch and bound over sets of exits, grown from their last exit to their first: the first right one decides, so
    to put an exit in front means to overwrite what a verification saves where that exit is right.

    Verifications with the same exits right weigh together: `right` float64 [L, U], `weight` [U], shares of all.
    """

    def __init__(self, candidates: Candidates, most: int, limit: float) -> None:
        useful = candidates.right & ~candidates.ended
        columns, counts = np.unique(useful, axis=1, return_counts=True)
        self.right: Floats = columns.astype(np.float64)
        self.weight: Floats = counts / len(candidates.ended)
        self.overall: Floats = self.right @ self.weight
        self.lead, self.cost = np.array(candidates.lead_s), np.array(candidates.cost_s)
        self.draft_s, self.most, self.limit = candidates.draft_s, most, limit
        self.best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}

    def run(self) -> dict[int, tuple[float, tuple[int, ...]]]:
        """Return the value and places of the best set by size."""
        # places of the later exits, what they save in each pattern before costs [U], their cost
        stack: list[tuple[tuple[int, ...], Floats, float]] = [((), np.zeros(len(self.weight)), 0.0)]
        while stack:
            tail, gain, spent = stack.pop()
            front = tail[0] if tail else len(self.cost)
            cheap = spent + self.cost[:front] <= self.limit
            if not cheap.any():
                continue
            kept = self.weight * gain
            overwritten = self.right[:front] @ kept
            saved = np.minimum(self.lead[:front] + spent, self.draft_s)
            now = float(kept.sum()) - spent
            value = np.where(cheap, now + saved * self.overall[:front] - overwritten - self.cost[:front], -np.inf)
            place = int(np.argmax(value))
            self._note(float(value[place]), (place, *tail))
            if len(tail) + 1 < self.most and self._may_help(len(tail), front, now, overwritten):
                # the most promising is pushed last and so tried first: good sets found early spare many others
                for place in np.argsort(value, kind="stable")[-int(cheap.sum()) :].tolist():
                    after = np.where(self.right[place] > 0.0, saved[place], gain)
                    stack.append(((place, *tail), after, spent + float(self.cost[place])))
        return self.best

    def _note(self, value: float, places: tuple[int, ...]) -> None:
        known = self.best.get(len(places))
        if known is None or value > known[0]:
            self.best[len(places)] = (value, places)

    def _may_help(self, size: int, front: int, now: float, overwritten: Floats) -> bool:
        """Whether more exits in front of `size` later ones could beat a known set of any size from `size` + 2 on.

        Each exit adds at most what it adds alone (what is overwritten is only lost once more), with a head start as if
        the whole budget were spent behind it.
        """
        start = np.minimum(self.lead[:front] + self.limit, self.draft_s)
        alone = np.sort(start * self.overall[:front] - overwritten - self.cost[:front])[::-1]
        bounds = now + np.cumsum(alone[: self.most - size])
        known = (self.best.get(size + more, (-np.inf, ()))[0] for more in range(2, len(bounds) + 1))
        return any(bound > value - 1e-12 for bound, value in zip(bounds[1:], known, strict=True))


def choice_of(candidates: Candidates, places: Sequence[int]) -> Choice:
    """Return what the exits at `places` (ascending indices) come to: the formula above."""
    useful = candidates.right[list(places)] & ~candidates.ended
    gain, later = np.zeros(len(candidates.ended)), 0.0
    for row, place in zip(useful[::-1], reversed(places), strict=True):
        gain[row] = min(candidates.lead_s[place] + later, candidates.draft_s)
        later += candidates.cost_s[place]
    layers = tuple(candidates.layers[place] for place in places)
    open_ended = useful[:, ~candidates.ended]
    right = float(open_ended.any(axis=0).mean()) if open_ended.size else 0.0
    return Choice(layers, float(gain.mean()) - later, later, right)
