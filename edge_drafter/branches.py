"""Chooses which continuation of the draft in flight deserves the next draft forward."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from edge_drafter.settings import BranchOrder


@dataclass(frozen=True)
class Branch:
    """A place where the verdict may land; `want` tokens are to be drafted behind node `anchor`.

    `score` is the confidence that it lands there.
    """

    anchor: int
    want: int
    score: float


class BranchQueue:
    """Branches of one verification in the order of a policy (Early Exits, Appendix A: queue Q_p by confidence)."""

    def __init__(self, policy: BranchOrder, limit: int) -> None:
        self._policy = policy
        self._limit = limit
        self._random = random.Random(0)
        self._branches: dict[int, Branch] = {}
        self._lots: dict[int, float] = {}

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Forget the branches at anchors that are not `wanted` any more."""
        for anchor in [anchor for anchor in self._branches if not wanted(anchor)]:
            del self._branches[anchor], self._lots[anchor]

    def put(self, branch: Branch) -> None:
        """Add a branch; one that is known keeps its place of arrival and the larger of both scores and wants."""
        known = self._branches.get(branch.anchor)
        if known is not None:
            branch = Branch(branch.anchor, max(known.want, branch.want), max(known.score, branch.score))
        self._branches[branch.anchor] = branch
        self._lots.setdefault(branch.anchor, self._random.random())

    def best(self) -> list[Branch]:
        """Return the branches worth drafting, first the one to draft first; at most `limit`."""
        branches = list(self._branches.values())
        if self._policy in (BranchOrder.PRIORITY, BranchOrder.CONFIDENCE):
            branches.sort(key=lambda branch: -branch.score)
        elif self._policy is BranchOrder.RANDOM:
            branches.sort(key=lambda branch: self._lots[branch.anchor])
        return branches[: self._limit]
