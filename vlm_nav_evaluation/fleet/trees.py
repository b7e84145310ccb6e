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
    head: Path = ()
    """The likeliest path just behind the tree: where a verdict's own token is most likely to land."""

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
def best_tree(levels: tuple[tuple[float, ...], ...], size: int, depth: int) -> Shape:
    """Return the `size` nodes with the largest path products, no deeper than `depth` (Sequoia, SpecExec).

    levels: the chance of each candidate, for every level; there is nothing below the last.
    """
    queue: list[tuple[float, Path]] = [(-1.0, ())]
    nodes: list[Path] = []
    head: Path = ()
    while queue and (len(nodes) < size or not head):
        value, node = heapq.heappop(queue)
        if node and (len(nodes) >= size or len(node) > depth):
            head = head or node
            continue
        if node:
            nodes.append(node)
        for rank, chance in enumerate(levels[len(node)] if len(node) < len(levels) else ()):
            heapq.heappush(queue, (value * chance, (*node, rank)))
    return Shape(tuple(nodes), head)


def expected_tokens(shape: Shape, levels: tuple[tuple[float, ...], ...]) -> float:
    """Return the tokens that a verification of the tree commits on average, the target's own included."""
    return 1.0 + sum(shape.reach(levels))
