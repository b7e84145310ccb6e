"""Grows a draft tree forward by forward and prunes it to the tokens that are likeliest to be reached.

SpecEdge, Appendix C, after SpecExec (Svirschevski et al., arXiv 2406.02532) and Sequoia (Chen et al., arXiv
2402.12374). It knows log probabilities only: the model beside the target and a recording grow the same tree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from cloud_verifier.tree import Tree
from speculation.wire import ROOT

Proposals = Sequence[tuple[int, float]]
"""Next tokens, likeliest first, with the natural logarithms of their probabilities."""


class Node(NamedTuple):
    """One token that may be drafted."""

    token: int
    parent: int
    """The node before it, ROOT for the answer's last token."""
    score: float
    """Log probability of its path from the root: 0 or less, and no more than its parent's."""


class Growth:
    """At most `size` tokens in at most `depth` forwards, one level each; `depth` 0 makes a chain of `size` tokens.

    Every forward feeds `leaves` and `grow` takes what may follow each of them. Of all tokens proposed so far the `size`
    with the likeliest paths stay, and only those are fed, so a token's whole path stays with it. Nothing follows a
    token in `ends`.
    """

    def __init__(self, size: int, depth: int = 0, ends: Collection[int] = ()) -> None:
        self.width = size if depth else 1
        """Tokens that are of use behind one leaf."""
        self.leaves: tuple[int, ...] = (ROOT,)
        """What the next forward feeds, ROOT first of all; empty: the tree is done."""
        self._size, self._forwards = size, depth or size
        self._ends = ends
        self._nodes: dict[int, Node] = {}
        self._count = 0

    def __getitem__(self, node: int) -> Node:
        return self._nodes[node]

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def grow(self, proposals: Iterable[Proposals]) -> None:
        """Take what may follow each of `leaves`, in their order; raises ValueError for another number of them."""
        nodes, new = dict(self._nodes), self._count
        # A full tree takes nothing that is less likely than all it has.
        floor = -math.inf if len(nodes) < self._size else min(node.score for node in nodes.values())
        for leaf, found in zip(self.leaves, proposals, strict=True):
            above = 0.0 if leaf == ROOT else nodes[leaf].score
            for token, log_probability in found[: self.width]:
                score = above + min(0.0, log_probability)
                if score == -math.inf or score < floor:
                    break
                nodes[self._count] = Node(token, leaf, score)
                self._count += 1
        # Of equals the older stays: a token is younger than its parent.
        best = heapq.nsmallest(self._size, nodes.items(), key=lambda each: (-each[1].score, each[0]))
        self._nodes = dict(best)
        self._forwards -= 1
        fresh = (node for node, content in best if node >= new and content.token not in self._ends)
        self.leaves = tuple(fresh) if self._forwards else ()

    @property
    def tree(self) -> Tree:
        """What was drafted so far, the likeliest tokens first."""
        index = {ROOT: ROOT} | {node: place for place, node in enumerate(self._nodes)}
        nodes = self._nodes.values()
        return Tree.own(
            [node.token for node in nodes], [index[node.parent] for node in nodes],
            [math.exp(node.score) for node in nodes],
        )  # fmt: skip
