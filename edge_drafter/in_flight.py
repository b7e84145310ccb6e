"""Drafts that were sent and are not decided yet: what the verifier may hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edge_drafter.tree import Rerooting, TokenTree
from speculation.acceptance import depths_of
from speculation.wire import Draft


@dataclass
class SentDraft:
    """A draft of the tree's `nodes`, behind its node `anchor`."""

    message: Draft
    anchor: int
    nodes: list[int]
    value: float
    """How many of its tokens are expected to stand."""
    full: bool
    """Whether it had gamma tokens, or its end, when it was sent."""
    ahead: bool
    """Whether it was sent before its anchor was committed."""
    sent_at: float
    repeated_at: float
    begun: bool = False
    """Whether an early token about it arrived, so that its verification runs."""

    @property
    def levels(self) -> int:
        """How many tokens its longest path has: the draft forwards that it takes from nothing."""
        parents = self.message.parents
        return len(self.nodes) if parents is None else max(depths_of(parents))

    def covers(self, node: int, tree: TokenTree) -> bool:
        """Whether a verifier that stands at `node` can go on with this draft."""
        if node == self.anchor:
            return True
        inside = set(self.nodes)
        return node in inside and not inside.isdisjoint(tree[node].children.values())

    def judged(self, rerooting: Rerooting) -> tuple[int, bool]:
        """Return how many of its tokens a commit accepted, and whether it rejected one behind them."""
        inside = set(self.nodes)
        accepted = [content for node, content in rerooting.path if node in inside]
        rejected = not inside.isdisjoint(accepted[-1].children.values()) if accepted else bool(self.nodes)
        return len(accepted), rejected


class SentDrafts:
    """Sent drafts by round. `current` is the newest that leads on from the root: it is or will be verified."""

    def __init__(self) -> None:
        self._by_round: dict[int, SentDraft] = {}
        self._inside: set[int] = set()
        self._anchors: set[int] = set()
        self.current: SentDraft | None = None

    def __len__(self) -> int:
        return len(self._by_round)

    def __iter__(self) -> Iterator[SentDraft]:
        return iter(self._by_round.values())

    def get(self, round: int) -> SentDraft | None:
        """Return the draft of a round; None for one that is decided."""
        return self._by_round.get(round)

    def at(self, anchor: int) -> SentDraft | None:
        """Return the newest draft behind `anchor`."""
        found = (draft for draft in reversed(self._by_round.values()) if draft.anchor == anchor)
        return next(found, None)

    def add(self, draft: SentDraft, root: int) -> None:
        """Take in a draft that is sent now."""
        self._by_round[draft.message.round] = draft
        self._inside.update(draft.nodes)
        self._anchors.add(draft.anchor)
        if draft.anchor == root:
            self.current = draft

    def decide(self, round: int, tree: TokenTree) -> None:
        """Forget the draft of `round`, by the verdict on which the tree was re-rooted, and all that are void now."""
        root = tree.root
        # Of drafts for one place the verifier holds the newest; an older one counts only where it is verified already.
        newest = {draft.anchor: number for number, draft in self._by_round.items()}
        self._by_round = {
            number: draft
            for number, draft in self._by_round.items()
            if number != round
            and ((draft.anchor in tree and draft.anchor != root)
                 or (number == newest[draft.anchor] and draft.covers(root, tree)))
        }  # fmt: skip
        self._inside = {node for draft in self for node in draft.nodes}
        self._anchors = {draft.anchor for draft in self}
        current = (draft for draft in reversed(self._by_round.values()) if draft.covers(root, tree))
        self.current = next(current, None)

    def next_roots(self, tree: TokenTree, least: float = 0.0) -> Iterator[int]:
        """Yield the nodes, of a reach of at least `least`, that a verdict on these drafts may make the root.

        The likeliest first; the tree must not change meanwhile.
        """
        inside, anchors = self._inside, self._anchors
        for node in tree.likeliest_first(tree.root, len(tree), least, frozenset()):
            if node not in inside:
                parent = tree[node].parent
                if parent in anchors or parent in inside:
                    yield node
