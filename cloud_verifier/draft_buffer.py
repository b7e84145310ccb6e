"""What one step may verify next: its robot's drafts, those that continue the answer now and those that may once it has
grown, and what followed in earlier answers.

A draft is placed by its digest alone. In the past it is walked down: its tokens are compared with the answer until the
walk stands where the answer ends; what hangs below is then current. Ahead it is held until a commit makes it current or
void.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.answer import Answer
from cloud_verifier.tree import Tree, continuation
from speculation.ngrams import Ngrams
from speculation.sampling import Evidence
from speculation.wire import Draft

HELD_DRAFTS = 16
"""Drafts that a step holds, current or ahead; the one that starts farthest ahead gives way, of equals the oldest."""


class DraftBuffer:
    """Drafts for an answer, by round, and earlier answers (`hints`, the likeliest first)."""

    def __init__(self, answer: Answer, hints: Sequence[Sequence[int]] = ()) -> None:
        self._answer = answer
        self._held: dict[int, tuple[Draft, Evidence]] = {}
        self._earlier = Ngrams()
        for hint in reversed(hints):
            self._earlier.remember(hint)
        self.best: Tree | None = None
        """What the deepest of the current drafts proposes next, of equals the newest; None: there is none."""

    def get(self, round: int) -> Draft | None:
        """Return a round's draft; None where it is not held."""
        return self._held[round][0] if round in self._held else None

    def evidence(self, tree: Tree) -> Evidence:
        """Return what came with the tokens of a held draft's tree, one entry a token; empty where nothing did."""
        _, known = self._held.get(tree.round, (None, ()))
        return tuple(known[node] for node in tree.nodes) if known else ()

    def hint(self, most: int) -> Tree | None:
        """Return at most `most` tokens that followed in an earlier answer, None where none fits.

        They followed the longest n-gram that ends the answer, see `Ngrams.lookup` (prompt lookup decoding).
        """
        room = min(most, self._answer.room)
        tokens = self._answer.allowed(self._earlier.lookup(self._answer.tokens, room)) if room > 0 else ()
        return Tree.chain(tokens) if tokens else None

    def add(self, draft: Draft, evidence: Evidence) -> None:
        """Take in a draft in place of an older one for its place; where a newer one is there it is void."""
        place = (draft.start, draft.digest)
        rivals = [round for round, (other, _) in self._held.items() if (other.start, other.digest) == place]
        if any(round > draft.round for round in rivals):
            return
        for round in rivals:
            del self._held[round]
        self._held[draft.round] = draft, evidence
        while len(self._held) > HELD_DRAFTS:
            del self._held[max(self._held, key=lambda round: (self._held[round][0].start, -round))]
        self.best = self._best()

    def taken(self, tree: Tree) -> None:
        """Forget the draft of `tree`, which is verified, unless it is only a part of the best one: the rest stays."""
        if self.best is None or len(tree.tokens) >= len(self.best.tokens):
            self._held.pop(tree.round, None)
            self.best = self._best()

    def clear(self) -> None:
        """Forget all drafts."""
        self._held.clear()
        self.best = None

    def settle(self) -> None:
        """Forget the drafts that the answer, which has grown, leads past; all where it is done."""
        is_done = self._answer.done
        self._held = {} if is_done else {round: each for round, each in self._held.items() if self._hopes(each[0])}
        self.best = self._best()

    def _best(self) -> Tree | None:
        trees = (tree for draft, _ in self._held.values() if (tree := self._current(draft)) is not None)
        return max(trees, key=lambda tree: (tree.levels[-1], tree.round), default=None)

    def _hopes(self, draft: Draft) -> bool:
        return draft.start > self._answer.position or self._current(draft) is not None

    def _current(self, draft: Draft) -> Tree | None:
        """Return what of a draft continues the answer, if that stands where it begins, or has passed it on its way."""
        if draft.start > self._answer.position or self._answer.digests[draft.start] != draft.digest:
            return None
        return continuation(draft, self._answer.tokens)
