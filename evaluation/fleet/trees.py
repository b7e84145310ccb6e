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


@lru_cache(maxsize=65536)
def best_tree(levels: tuple[tuple[float, ...], ...], size: int, depth: int, heads: int = 1, narrow: int = 0) -> Shape:
    """Return the `size` nodes with the largest path products, no deeper than `depth` (Sequoia, SpecExec).

    levels: the chance of each candidate, for every level; there is nothing below the last. heads: how many of the next
    likeliest nodes are named. narrow: so many first levels hold at most size // heads nodes each, because they were
    drafted beside others.
    """
    queue: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    nodes: list[tuple[int, ...]] = []
    left: list[tuple[int, ...]] = []
    width = [max(1, size // heads)] * narrow
    while queue and (len(nodes) < size or len(left) < heads):
        value, node = heapq.heappop(queue)
        level = len(node)
        if node and (len(nodes) >= size or level > depth or (level <= narrow and not width[level - 1])):
            left.append(node)
            continue
        if node:
            nodes.append(node)
            if level <= narrow:
                width[level - 1] -= 1
        for rank, chance in enumerate(levels[level] if level < len(levels) else ()):
            heapq.heappush(queue, (value * chance, (*node, rank)))
    return Shape(tuple(nodes), frozenset(left[:heads]))


def expected_tokens(shape: Shape, levels: tuple[tuple[float, ...], ...]) -> float:
    """Return the tokens that a verification of the tree commits on average, the target's own included."""
    total = 1.0
    for node in shape.nodes:
        chance = 1.0
        for level, rank in zip(levels, node, strict=False):
            chance *= level[rank]
        total += chance
    return total
