"""Chooses which tokens behind a node make a draft, and knows when it is full and what it is worth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from edge_drafter.answer import Answer
from edge_drafter.settings import DraftingConfig
from edge_drafter.tree import TokenTree


class DraftSelector:
    """Cuts drafts out of one step's tree; `gamma` is set from outside.

    A *full* draft has gamma tokens, or reaches the answer's end or the last place where a draft token can stand:
    the verdict adds a token of its own, so a draft never fills the answer up. With `stop_below` it is full, too, where
    its last token is predicted to be rejected. That token is sent: WISP (Eq. 25) leaves it out, but its forward is
    spent, one more token in a verification costs next to nothing, and the prediction may be wrong. So no draft is empty
    because of a prediction.
    """

    def __init__(self, tree: TokenTree, answer: Answer, config: DraftingConfig, max_draft: int, gamma: int) -> None:
        self._tree = tree
        self._answer = answer
        self._config = config
        self._max_draft = max_draft
        self._ends = answer.ends
        self.gamma = gamma
        self._known_at: tuple[int, int, int] | None = None
        self._paths: dict[tuple[int, int], list[int]] = {}
        self._cuts: dict[int, list[int]] = {}

    def room(self, node: int) -> int:
        """Return how many draft tokens may stand behind `node`: the answer's room, less the verdict's own token."""
        return max(0, self._answer.room - self._tree.ahead(node) - 1)

    def need(self, node: int) -> int:
        """Return how many tokens make a full draft behind `node`."""
        return min(self.gamma, self._max_draft, self.room(node))

    def ends_at(self, node: int) -> bool:
        """Whether `node` ends the answer."""
        return node != self._tree.root and self._tree[node].token in self._ends

    def closes(self, node: int) -> bool:
        """Whether a draft ends at `node`: it ends the answer, is predicted to be rejected, or was fed and its model has
        nothing to propose behind it: a short list may lack all that a grammar allows."""
        content = self._tree[node]
        if content.proposals == ():
            return True
        if node == self._tree.root:
            return False
        return content.chance < self._config.stop_below or content.token in self._ends

    def path(self, node: int, want: int) -> list[int]:
        """Return the likeliest chain of at most `want` nodes behind `node`, up to one that closes it."""
        self._drop_stale()
        path = self._paths.get((node, want))
        if path is None:
            path = self._tree.likeliest_path(node, want, self._ends)
            path = path[: next((place for place, each in enumerate(path, 1) if self.closes(each)), None)]
            self._paths[node, want] = path
        return path

    def end(self, node: int, want: int) -> int:
        """Return the last node of that chain; `node` where there is none."""
        path = self.path(node, want)
        return path[-1] if path else node

    def is_full(self, node: int, want: int | None = None) -> bool:
        """Whether a full draft, or one of `want` tokens, stands behind `node`.

        How likely `node` itself is has no say: the draft is for the case that it is committed.
        """
        want = self.need(node) if want is None else want
        path = self.path(node, want)
        if len(path) >= want:
            return True
        return self.closes(path[-1]) if path else self.ends_at(node) or self._tree[node].proposals == ()

    def cut(self, anchor: int) -> list[int]:
        """Return the nodes of the best draft behind `anchor`, parents first: a chain, or a tree.

        A tree holds the likeliest chain of a full draft, however little the draft thinks of it, and is filled up with
        the likeliest other nodes: so no draft is empty before it is known what the draft's chances are worth.
        """
        if not self._config.draft_tokens:
            return self.path(anchor, self.need(anchor))
        self._drop_stale()
        nodes = self._cuts.get(anchor)
        if nodes is None:
            limit = min(self._config.draft_tokens, self._max_draft)
            tree = self._tree
            likeliest = tree.likeliest_first(anchor, self.room(anchor), self._config.least, self._ends)
            nodes = list(itertools.islice(likeliest, limit))
            chain = self.path(anchor, min(self.need(anchor), limit))
            if not set(chain).issubset(nodes):
                others = [node for node in nodes if node not in chain][: limit - len(chain)]
                nodes = sorted([*chain, *others], key=lambda node: (-tree[node].reach, node))
            self._cuts[anchor] = nodes
        return nodes

    def longest(self, anchor: int) -> list[int]:
        """Return the likeliest chain behind `anchor`, with as many tokens as are drafted and a verifier takes."""
        return self.path(anchor, min(self._max_draft, self.room(anchor)))

    def value(self, anchor: int, nodes: Sequence[int]) -> float:
        """Return how many tokens of a draft are expected to stand."""
        tree, reach = self._tree, self._tree[anchor].reach
        return sum([tree[node].reach for node in nodes]) / reach if reach > 0.0 else 0.0

    def unfed(self, anchor: int, leaves: list[int]) -> list[int]:
        """Return `leaves` and the likeliest other unfed nodes behind `anchor`, as many as one forward takes."""
        most = self._config.leaves
        if len(leaves) >= most:
            return leaves
        tree, found = self._tree, list(leaves)
        depth = max(0, self.room(anchor) - 1)
        likeliest = tree.likeliest_first(anchor, depth, self._config.least, self._ends)
        for node in itertools.islice(likeliest, self._config.max_nodes):
            content = tree[node]
            if content.proposals is None and content.token not in self._ends and node not in leaves:
                found.append(node)
                if len(found) >= most:
                    break
        return found

    def _drop_stale(self) -> None:
        """What was cut stays right until the tree, the answer or gamma changes."""
        now = (self._tree.version, self._answer.position, self.gamma)
        if now != self._known_at:
            self._known_at = now
            self._paths.clear()
            self._cuts.clear()
