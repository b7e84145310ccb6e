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
    best = _best_sets(candidates, min(most, len(candidates.layers)), limit)
    return [choice_of(candidates, best[size][1]) for size in sorted(best)]


def _best_sets(candidates: Candidates, most: int, limit: float) -> dict[int, tuple[float, tuple[int, ...]]]:
    """Return the most that a set of each size saves, and its places; all sets that cost at most `limit` are tried.

    Sets grow from their last exit to their first: the first right one decides, so to put an exit in front means to
    overwrite what a verification saves where that exit is right. Verifications with the same exits right weigh
    together.
    """
    columns, counts = np.unique(candidates.right & ~candidates.ended, axis=1, return_counts=True)
    right: Floats = columns.astype(np.float64)
    weight: Floats = counts / len(candidates.ended)
    overall: Floats = right @ weight
    lead, cost = np.array(candidates.lead_s), np.array(candidates.cost_s)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}

    def grow(tail: tuple[int, ...], gain: Floats, spent: float) -> None:
        # `gain` [U] is what the later exits save in each pattern, before costs
        front = tail[0] if tail else len(cost)
        cheap = np.flatnonzero(spent + cost[:front] <= limit)
        if not len(cheap):
            return
        kept, size = weight * gain, len(tail) + 1
        saved = np.minimum(lead[cheap] + spent, candidates.draft_s)
        value = float(kept.sum()) - spent + saved * overall[cheap] - right[cheap] @ kept - cost[cheap]
        at = int(np.argmax(value))
        if size not in best or value[at] > best[size][0]:
            best[size] = float(value[at]), (int(cheap[at]), *tail)
        if size < most:
            for place, head_start in zip(cheap.tolist(), saved.tolist(), strict=True):
                grow((place, *tail), np.where(right[place] > 0.0, head_start, gain), spent + float(cost[place]))

    grow((), np.zeros(len(weight)), 0.0)
    return best


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
