"""The drafts that one step holds: those that continue its answer now, and those that may once it has grown.

A draft is placed by its digest alone. In the past it is walked down: its tokens are compared with the answer until the
walk stands where the answer ends; what hangs below is then current. Ahead it is held until a commit makes it current or
void.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.tree import Tree, continuation
from speculation.sampling import Evidence
from speculation.wire import Draft

HELD_DRAFTS = 16
"""Drafts that a step holds, current or ahead; the one that starts farthest ahead gives way, of equals the oldest."""


class DraftBuffer:
    """Of one step, by round."""

    def __init__(self, answer: Sequence[int], digests: Sequence[bytes]) -> None:
        """`answer` and the digests of its prefixes, the empty one first, are the step's, which lengthens them."""
        self._answer, self._digests = answer, digests
        self._held: dict[int, tuple[Draft, Evidence]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, round: int) -> Draft | None:
        """Return a round's draft; None where it is not held."""
        return self._held[round][0] if round in self._held else None

    def evidence(self, tree: Tree) -> Evidence:
        """Return what came with the tokens of a held draft's tree, one entry a token; empty where nothing did."""
        _, known = self._held.get(tree.round, (None, ()))
        return tuple(known[node] for node in tree.nodes) if known else ()

    def add(self, draft: Draft, evidence: Evidence) -> bool:
        """Take in a draft in place of an older one for its place; return False where a newer one is there."""
        place = (draft.start, draft.digest)
        rivals = [round for round, (other, _) in self._held.items() if (other.start, other.digest) == place]
        if any(round > draft.round for round in rivals):
            return False
        for round in rivals:
            del self._held[round]
        self._held[draft.round] = draft, evidence
        while len(self._held) > HELD_DRAFTS:
            del self._held[max(self._held, key=lambda round: (self._held[round][0].start, -round))]
        return True

    def remove(self, round: int) -> None:
        """Forget a round's draft, if it is held."""
        self._held.pop(round, None)

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()

    def settle(self) -> None:
        """Forget the drafts that the answer, which has grown, leads past."""
        self._held = {round: each for round, each in self._held.items() if self._is_hopeful(each[0])}

    def best(self) -> Tree | None:
        """Return what the deepest of the current drafts proposes next, of equals the newest; None: there is none."""
        trees = (tree for draft, _ in self._held.values() if (tree := self._current(draft)) is not None)
        return max(trees, key=lambda tree: (tree.levels[-1], tree.round), default=None)

    def _is_hopeful(self, draft: Draft) -> bool:
        return draft.start > len(self._answer) or self._current(draft) is not None

    def _current(self, draft: Draft) -> Tree | None:
        """Return what of a draft continues the answer, if that stands where it begins, or has passed it on its way."""
        if draft.start > len(self._answer) or self._digests[draft.start] != draft.digest:
            return None
        return continuation(draft, self._answer)
