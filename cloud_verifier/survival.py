"""Survival: how likely the target is to accept a session's draft tokens, by their place, calibrated by its verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from speculation.wire import ROOT

_KEPT = 0.98
"""Weight of what was seen before, a verdict later."""
_WEIGHT = 4.0
"""How many verdicts at a depth count as much as what is known of all depths."""
_DEEPEST, _LAST = 8, 4
"""Deeper levels, and later siblings, are counted together."""


@dataclass
class _Share:
    """A running share of accepted tokens."""

    accepted: float = 0.0
    judged: float = 0.0

    def learn(self, accepted: int, judged: int = 1) -> None:
        self.accepted = _KEPT * self.accepted + accepted
        self.judged = _KEPT * self.judged + judged

    def forget(self) -> None:
        self.accepted *= _KEPT
        self.judged *= _KEPT

    def towards(self, prior: float, weight: float) -> float:
        return (self.accepted + prior * weight) / (self.judged + weight)


class Survival:
    """Chances of draft tokens, learned on line.

    A token at depth d (1: behind the answer's end) that is the r-th of its siblings (0: drafted first) is accepted
    with chance c(d, r) where its parent was, and *survives* with the product of these chances along its path. Both
    are what was seen at (d, r) where that is much, else nearer to what was seen at r at all depths, and that nearer to
    2^-(r+1). Siblings exclude each other, so that a visited parent judges all its children.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], _Share] = {}
        self._ranks: dict[int, _Share] = {}
        self._drafted = _Share()
        self._chances: dict[tuple[int, int], float] = {}
        self._chain: list[float] = []
        """Survival of the first tokens of a chain."""

    @property
    def share(self) -> float:
        """Accepted of all drafted tokens, those below a rejection among them: alpha of WISP, Eq. 5."""
        return self._drafted.towards(0.5, 1.0)

    def of(self, parents: Sequence[int]) -> list[float]:
        """Return the survival of every token of a tree; `parents[i]` < i is its parent's index or ROOT."""
        if tuple(parents) == tuple(range(ROOT, len(parents) - 1)):
            return self._of_chain(len(parents))
        depths: list[int] = []
        found: list[float] = []
        siblings: Counter[int] = Counter()
        for parent in parents:
            depth, above = (1, 1.0) if parent == ROOT else (depths[parent] + 1, found[parent])
            depths.append(depth)
            found.append(above * self._chance(depth, siblings[parent]))
            siblings[parent] += 1
        return found

    def judged(self, parents: Sequence[int], path: Sequence[int]) -> None:
        """Learn from a verdict on a tree: the indices of its accepted tokens, root first."""
        depths = {ROOT: 0, **{node: depth for depth, node in enumerate(path, start=1)}}
        siblings: Counter[int] = Counter()
        self._drafted.learn(len(path), len(parents))
        for node, parent in enumerate(parents):
            if parent in depths:
                rank, depth = min(siblings[parent], _LAST), min(depths[parent] + 1, _DEEPEST)
                siblings[parent] += 1
                self._places.setdefault((depth, rank), _Share()).learn(node in depths)
                self._ranks.setdefault(rank, _Share()).learn(node in depths)
        self._forget_chances()

    def declined(self) -> None:
        """A draft was at hand and not verified: what was seen fades, so that drafts are tried again in the end."""
        for share in (*self._places.values(), *self._ranks.values(), self._drafted):
            share.forget()
        self._forget_chances()

    def _of_chain(self, size: int) -> list[float]:
        for depth in range(len(self._chain) + 1, size + 1):
            self._chain.append((self._chain[-1] if self._chain else 1.0) * self._chance(depth, 0))
        return self._chain[:size]

    def _forget_chances(self) -> None:
        self._chances.clear()
        self._chain.clear()

    def _chance(self, depth: int, rank: int) -> float:
        place = min(depth, _DEEPEST), min(rank, _LAST)
        chance = self._chances.get(place)
        if chance is None:
            overall = self._ranks.get(place[1], _Share()).towards(0.5 ** (place[1] + 1), 1.0)
            chance = self._chances[place] = self._places.get(place, _Share()).towards(overall, _WEIGHT)
        return chance
