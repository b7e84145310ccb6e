"""What a head is worth: tokens a verification on answers of the target, beside those of a draft model.

The answers are the target's own, so its greedy choice after every entry is the entry that follows. A chain drafted
behind a place is right as far as its tokens are those; up to there the drafter has been fed the answer's own tokens.
So one unrolled pass knows how every chain behind every place of an answer would have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Hits = npt.NDArray[np.bool_]


@dataclass
class Tally:
    """Of the chains of one drafter over many answers, `gamma` tokens a draft."""

    gamma: int
    tokens: int = 0
    verifications: int = 0
    drafted: int = 0
    accepted: int = 0
    right: list[list[int]] = field(default_factory=list)
    """By depth: [drafted tokens that were right, places] behind every place, whatever came before."""

    def add(self, hits: Sequence[Hits]) -> None:
        """Enter one answer of n tokens: `hits[m][i]` is whether the token drafted at depth m + 1 for its token i is
        right; for depth m + 1 the chain begins behind token i - m - 1, where token -1 is the prompt's end.

        `hits` has at least gamma depths.
        """
        count, at = len(hits[0]), 0
        while at < count:
            room = min(self.gamma, count - at - 1)
            accepted = 0
            while accepted < room and hits[accepted][at + accepted]:
                accepted += 1
            self.verifications += 1
            self.tokens += accepted + 1
            self.drafted += room
            self.accepted += accepted
            at += accepted + 1
        while len(self.right) < len(hits):
            self.right.append([0, 0])
        for depth, each in enumerate(hits):
            self.right[depth][0] += int(each[depth:].sum())
            self.right[depth][1] += len(each[depth:])

    @property
    def tau(self) -> float:
        """Tokens a verification, as mode `sd` would commit them; 0 before the first."""
        return self.tokens / self.verifications if self.verifications else 0.0

    @property
    def shares(self) -> list[float]:
        """How many of the tokens drafted at each depth are right."""
        return [hits / count if count else 0.0 for hits, count in self.right]
