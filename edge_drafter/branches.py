"""Chooses which continuation of the draft in flight deserves the next draft forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """A place where the verdict may land; `want` tokens are to be drafted behind node `anchor`.

    `score` is the confidence that it lands there.
    """

    anchor: int
    want: int
    score: float


class BranchQueue:
    """Branches of one verification by confidence (Early Exits, Appendix A: queue Q_p)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._branches: dict[int, Branch] = {}

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Forget the branches at anchors that are not `wanted` any more."""
        for anchor in [anchor for anchor in self._branches if not wanted(anchor)]:
            del self._branches[anchor]

    def put(self, branch: Branch) -> None:
        """Add a branch; one that is known keeps its place of arrival and the larger of both scores and wants."""
        known = self._branches.get(branch.anchor)
        if known is not None:
            branch = Branch(branch.anchor, max(known.want, branch.want), max(known.score, branch.score))
        self._branches[branch.anchor] = branch

    def best(self) -> list[Branch]:
        """Return the branches worth drafting, first the one to draft first; at most `limit`."""
        return sorted(self._branches.values(), key=lambda branch: -branch.score)[: self._limit]
