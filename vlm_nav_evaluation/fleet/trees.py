"""Draft trees of a draft model whose candidates are right with known chances: which 32 nodes, and what comes next."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

from speculation.wire import ROOT

Path: TypeAlias = tuple[int, ...]
"""Ranks of the tokens from the tree's root on."""


@dataclass(frozen=True)
class Shape:
    """A tree's nodes as paths of ranks, the likeliest first, so that no node comes before its parent."""

    nodes: tuple[Path, ...]
    heads: tuple[Path, ...] = ()
    """The likeliest paths just behind the tree, the likeliest first: where a verdict's own token may land."""
    chances: tuple[float, ...] = ()
    """Chance of every head that the verdict ends there."""

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Return the index of every node's parent, as in `wire.Draft.parents`."""
        index = {(): ROOT} | {node: place for place, node in enumerate(self.nodes)}
        return tuple(index[node[:-1]] for node in self.nodes)

    def tokens(self, firsts: tuple[int, ...], position: int) -> list[int]:
        """Return the nodes' tokens behind answer position `position`, see `Request.firsts`."""
        return [firsts[position + len(node) - 1] + node[-1] for node in self.nodes]

    def reach(self, levels: tuple[tuple[float, ...], ...]) -> list[float]:
        """Return the chance that each node's path is the target's, by the chances of the candidates at every level."""
        return [math.prod(level[rank] for level, rank in zip(levels, node, strict=False)) for node in self.nodes]

    @cached_property
    def _known(self) -> frozenset[Path]:
        return frozenset(self.nodes)

    def accepted(self, ranks: Sequence[int]) -> int:
        """Return how many of the next tokens, given by their ranks, lie on a path of the tree."""
        length = 0
        while length < len(ranks) and tuple(ranks[: length + 1]) in self._known:
            length += 1
        return length

    def within(self, levels: int) -> Shape:
        """Return the part that is at most `levels` deep."""
        return replace(self, nodes=tuple(node for node in self.nodes if len(node) <= levels))


@lru_cache(maxsize=8192)
def best_tree(
    levels: tuple[tuple[float, ...], ...], size: int, depth: int, heads: int = 1, widths: tuple[int, ...] = ()
) -> Shape:
    """Return the `size` nodes with the largest path products, no deeper than `depth` (Sequoia, SpecExec).

    levels: the chance of each candidate, for every level; there is nothing below the last. heads: how many of the next
    likeliest nodes are named. widths: how many nodes the first levels hold at most, because they were drafted beside
    others.
    """
    queue: list[tuple[float, Path]] = [(-1.0, ())]
    nodes: list[Path] = []
    left: list[tuple[float, Path]] = []
    places = list(widths)
    while queue and (len(nodes) < size or len(left) < heads):
        value, node = heapq.heappop(queue)
        level = len(node)
        if node and (len(nodes) >= size or level > depth or (level <= len(places) and not places[level - 1])):
            left.append((-value, node))
            continue
        if node:
            nodes.append(node)
            if level <= len(places):
                places[level - 1] -= 1
        for rank, chance in enumerate(levels[level] if level < len(levels) else ()):
            heapq.heappush(queue, (value * chance, (*node, rank)))
    left = left[:heads]
    return Shape(tuple(nodes), tuple(node for _, node in left), tuple(value for value, _ in left))


@lru_cache(maxsize=8192)
def widened_tree(
    levels: tuple[tuple[float, ...], ...], size: int, forwards: int, heads: int = 1, widths: tuple[int, ...] = ()
) -> Shape:
    """Return the best tree that so many forwards make of levels that were drafted narrow.

    A forward adds a level below, or gives one its other nodes, for which those above must have theirs: so the first of
    them widen the first levels, as many as commit most, and the others go deeper. widths: see `best_tree`.
    """
    made = []
    for wider in range(forwards + 1 if any(width < size for width in widths) else 1):
        depth = max(len(widths), wider) + forwards - wider
        shape = best_tree(levels[: depth + 1], size, depth, heads, (size,) * wider + widths[wider:])
        made.append((expected_tokens(shape, levels), -wider, shape))
    return max(made, key=lambda each: each[:2])[2]


def expected_tokens(shape: Shape, levels: tuple[tuple[float, ...], ...]) -> float:
    """Return the tokens that a verification of the tree commits on average, the target's own included."""
    return 1.0 + sum(shape.reach(levels))
