"""Draft trees of a draft model whose candidates are right with known chances: which 32 nodes, and what comes next."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property, lru_cache

from speculation.wire import ROOT


@dataclass(frozen=True)
class Shape:
    """A tree's nodes as paths of ranks, the likeliest first, so that no node comes before its parent."""

    nodes: tuple[tuple[int, ...], ...]
    heads: frozenset[tuple[int, ...]]
    """The likeliest paths just behind the tree: where a verdict's own token may land."""

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Index of every node's parent, as in `wire.Draft.parents`."""
        index = {(): ROOT} | {node: place for place, node in enumerate(self.nodes)}
        return tuple(index[node[:-1]] for node in self.nodes)

    def tokens(self, firsts: tuple[int, ...], position: int) -> list[int]:
        """Return the nodes' tokens behind answer position `position`, see `Request.firsts`."""
        return [firsts[position + len(node) - 1] + node[-1] for node in self.nodes]

    def within(self, levels: int) -> Shape:
        """Return the part that is at most `levels` deep."""
        return Shape(tuple(node for node in self.nodes if len(node) <= levels), self.heads)


@lru_cache(maxsize=4096)
def best_tree(
    ranks: tuple[float, ...], size: int, depth: int, heads: int = 1, narrow: tuple[int, int] = (0, 0)
) -> Shape:
    """Return the `size` nodes with the largest path products, no deeper than `depth` (Sequoia, SpecExec).

    ranks: the chance of each candidate. heads: how many of the next likeliest nodes, at any depth, are named.
    narrow: (levels, width): so many first levels hold at most so many nodes each, because they were drafted beside
    others.
    """
    queue: list[tuple[float, tuple[int, ...]]] = [(-chance, (rank,)) for rank, chance in enumerate(ranks)]
    heapq.heapify(queue)
    nodes: list[tuple[int, ...]] = []
    left: list[tuple[float, tuple[int, ...]]] = []
    widths: dict[int, int] = {}
    levels, width = narrow
    while queue and (len(nodes) < size or len(left) < heads):
        value, node = heapq.heappop(queue)
        level = len(node)
        full = level <= levels and widths.get(level, 0) >= width
        if len(nodes) >= size or level > depth or full:
            left.append((value, node))
            continue
        nodes.append(node)
        widths[level] = widths.get(level, 0) + 1
        for rank, chance in enumerate(ranks):
            heapq.heappush(queue, (value * chance, (*node, rank)))
    named = heapq.nsmallest(heads, left)
    return Shape(tuple(nodes), frozenset(node for _, node in named))


def expected_tokens(shape: Shape, ranks: tuple[float, ...]) -> float:
    """Return the tokens that a verification of the tree commits on average, the target's own included."""
    total = 1.0
    for node in shape.nodes:
        chance = 1.0
        for rank in node:
            chance *= ranks[rank]
        total += chance
    return total
