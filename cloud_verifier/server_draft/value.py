"""Estimates what drafts of the model beside the target are worth to a session, before and after they are made."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cloud_verifier.tree import Tree
from speculation.acceptance import depths_of

OWN_TOKENS, OWN_DEPTH = 32, 16
"""Size of the trees that the verifier drafts by itself (SpecEdge, Appendix C), and their most levels."""
_SELDOM, _MOST = 16, 256
"""Drafts that are left alone before one is tried again, at first and at most."""


class DraftRetries:
    """Counts the drafts of one source that were left alone: what is never verified shows no recovery, so a try is due
    now and then, and more rarely after each one that failed."""

    def __init__(self) -> None:
        self._declined, self._interval = 0, _SELDOM

    @property
    def is_due(self) -> bool:
        """Whether so many drafts were left alone that one is to be tried."""
        return self._declined >= self._interval

    def judged(self, is_accepted: bool) -> None:
        """Enter a verdict, which accepted a token or none."""
        if is_accepted:
            self._interval = _SELDOM
        elif self.is_due:
            self._interval = min(2 * self._interval, _MOST)
        self._declined = 0

    def declined(self) -> None:
        """Enter that a draft was at hand and left alone."""
        self._declined += 1


class ServerDraftValue:
    """Estimates what the verifier's own drafts are worth to a session, by the draft model's probabilities.

    A level's *mass* is the sum of the probabilities of its tokens' paths: how likely the answer is to go through it, if
    the draft model is right about itself. How far it is, each level's verdicts show: the ratio of accepted tokens to
    mass. How the mass shrinks from level to level, drafts show before any verdict.
    """

    _KEPT = 0.98
    _LENT = 4.0
    """A level begins as the one above, with the weight of so many tokens of mass."""
    _TRUSTED = 8.0
    """The draft model is taken to be right about itself, with the weight of so many tokens."""
    _SHRINKS = 0.7
    """Whoever gave the verifier a draft model expects something of it."""

    def __init__(self) -> None:
        self.tries = DraftRetries()
        self._masses = [(0.0, 0.0)] * OWN_DEPTH
        """Of each level, and of the level above it where that was drafted behind."""
        self._verdicts = [(0.0, 0.0)] * OWN_DEPTH
        """Accepted tokens, and mass, of each level."""
        self._breadth = 1.0

    def tokens(self, depth: int, most: int) -> int:
        """Return about how many tokens of a draft so deep will be verified."""
        return min(most, max(depth, round(self._breadth * depth)))

    def gains(self, depth: int) -> list[float]:
        """Return the tokens E that drafts of 1, 2, ... `depth` levels commit."""
        mass, reach, tokens, found = 1.0, 1.0, 1.0, list[float]()
        for shrinks, right in zip(self._shrinking()[:depth], self._ratios(), strict=False):
            mass *= shrinks
            reach = min(reach, right * mass)
            tokens += reach
            found.append(tokens)
        return found

    def expected(self, tree: Tree) -> list[float]:
        """Return the tokens that verifying the first 0, 1, 2, ... tokens of a draft commits."""
        ratios, depths = self._ratios(), depths_of(tree.parents)[1:]
        worth = (ratios[depth - 1] * reach for depth, reach in zip(depths, tree.reach, strict=True))
        return [1.0 + sum_ for sum_ in itertools.accumulate(worth, initial=0.0)]

    def further(self, tree: Tree) -> float:
        """Return the tokens that one level more would add to a draft."""
        masses = _masses(tree)
        level = len(masses)
        if not level or level >= OWN_DEPTH:
            return 0.0
        return self._ratios()[level] * self._shrinking()[level] * masses[-1]

    def drafted(self, tree: Tree) -> None:
        """Learn from a draft before its verdict."""
        above = 1.0
        for level, mass in enumerate(_masses(tree)[:OWN_DEPTH]):
            below, behind = self._masses[level]
            self._masses[level] = self._KEPT * below + mass, self._KEPT * behind + above
            above = mass

    def judged(self, tree: Tree, accepted: int) -> None:
        """Learn from the verdict on the part of a draft that was verified."""
        self.tries.judged(accepted > 0)
        masses = [*_masses(tree)[:OWN_DEPTH], *[0.0] * OWN_DEPTH]
        # What is not reached fades, too: a level that had bad luck is tried again.
        self._verdicts = [
            (self._KEPT * right + (level < accepted), self._KEPT * mass + masses[level])
            for level, (right, mass) in enumerate(self._verdicts)
        ]
        self._breadth += 0.25 * (len(tree.tokens) / tree.levels[-1] - self._breadth)

    def _shrinking(self) -> list[float]:
        """Return the mass of each level as a share of the level above."""
        return _chained(self._masses, self._SHRINKS, self._LENT)

    def _ratios(self) -> list[float]:
        """Return, for each level, accepted tokens over mass."""
        right, mass = (sum(column) for column in zip(*self._verdicts, strict=True))
        return _chained(self._verdicts, (right + self._TRUSTED) / (mass + self._TRUSTED), self._LENT)


def _chained(sums: Sequence[tuple[float, float]], ratio: float, lent: float) -> list[float]:
    """Return part over whole of each level, begun as that of the level above with the weight `lent`."""
    found = list[float]()
    for part, whole in sums:
        ratio = (part + lent * ratio) / (whole + lent)
        found.append(ratio)
    return found


def _masses(tree: Tree) -> list[float]:
    """Return the mass of each level of a draft; see `ServerDraftValue`."""
    masses = [0.0] * tree.levels[-1]
    for depth, reach in zip(depths_of(tree.parents)[1:], tree.reach, strict=True):
        masses[depth - 1] += reach
    return masses
