"""Decides which draft tokens stand, and what follows them: the walk that makes the target the only author (numpy).

How a token is sampled after a node is its scheme's own, see `speculation.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from speculation.distributions import Logits
from speculation.wire import ROOT, Masses


class Rest(Protocol):
    """What a verdict leaves to the edge: the token after its path, which only the edge can sample."""

    @property
    def part(self) -> Masses:
        """What the edge gets to sample it from, see `wire.Commit.rest`."""
        ...

    @property
    def whole(self) -> Masses:
        """What an edge gets for which `part` is not enough, see `wire.Fetch`."""
        ...

    def allows(self, token: int) -> bool:
        """Whether the edge can have sampled this token."""
        ...


@dataclass(frozen=True)
class Verdict:
    """A verdict is what the target makes of a draft: the accepted nodes `path`, root first, and the `token` after them.

    `confidence` is the probability of the whole verdict: the softmax score of one token (Fast and Cost-effective
    Speculative Edge-Cloud Decoding with Early Exits, Eq. 4), multiplied over the tokens on the path and `token`.
    `rest`: where only the edge can sample what follows; `token` is then a guess, or 0.
    """

    path: tuple[int, ...]
    token: int
    confidence: float
    rest: Rest | None = None


def judge_picks(tokens: Sequence[int], parents: Sequence[int], picks: Sequence[tuple[int, float]]) -> Verdict:
    """Judge a draft tree by one sampled token a row: the token after the root and after each node.

    `picks` are n + 1 tokens with their probabilities, in the order of the rows of `walk_rows`; nan stands for logits
    that are not finite. Raises ValueError as that does.
    """
    if len(picks) != len(tokens) + 1:
        raise ValueError(f"{len(picks)} picks for {len(tokens)} tokens; give one more than tokens")
    return _walk(tokens, parents, lambda node, _: picks[node + 1])


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return how far behind the root each row of a tree's logits stands: 0 for the root's, then one a node."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    return depths


def walk_rows(
    tokens: Sequence[int],
    parents: Sequence[int],
    logits: Logits,
    pick: Callable[[Logits, int], tuple[int, float]],
    ids: npt.NDArray[np.int64] | None = None,
) -> Verdict:
    """Walk from the root to the child that is picked until there is none.

    Node i carries `tokens[i]` behind node `parents[i]` < i or ROOT; row 0 of the logits [n + 1, vocabulary] follows the
    root, row i + 1 node i. `pick` returns the column, and its probability, of a row at a depth, 0 for the root's. Of
    siblings with one token the first counts. `ids` are the tokens of the columns (ascending), where these are no whole
    vocabulary. The walk knows no end of an answer: whoever commits cuts behind the first end token. Raises ValueError
    for a malformed tree, or where it comes to logits that are not finite.
    """
    if logits.ndim != 2 or len(logits) != len(tokens) + 1:
        raise ValueError(f"{len(tokens)} tokens and logits {list(logits.shape)} are no draft tree")

    def picked(node: int, depth: int) -> tuple[int, float]:
        row = logits[node + 1]
        if not np.isfinite(row.max()):
            return 0, np.nan
        column, probability = pick(row, depth)
        return column if ids is None else int(ids[column]), probability

    return _walk(tokens, parents, picked)


def _walk(tokens: Sequence[int], parents: Sequence[int], pick: Callable[[int, int], tuple[int, float]]) -> Verdict:
    """Follow the tree while it holds what is picked: the token, and its probability, after a node at a depth."""
    children = _children(tokens, parents)
    path: list[int] = []
    node, confidence = ROOT, 1.0
    while True:
        token, probability = pick(node, len(path))
        if np.isnan(probability):
            raise ValueError(f"logits after node {node} are not finite; the model's weights or inputs are broken")
        confidence *= probability
        child = children.get((node, token))
        if child is None:
            return Verdict(tuple(path), token, confidence)
        path.append(child)
        node = child


def _children(tokens: Sequence[int], parents: Sequence[int]) -> dict[tuple[int, int], int]:
    check_parents(tokens, parents)
    children: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        children.setdefault((parent, token), node)
    return children


def expected_tokens(chance: float, depth: int) -> float:
    """Return E(k) = 1 + a + ... + a^k, the tokens that verifying a draft `depth` levels deep commits.

    The target's own token is one of them; `chance` is that of each draft token whose ancestors stand (Leviathan et al.,
    arXiv 2211.17192, Eq. 1).
    """
    return sum(chance**level for level in range(depth + 1))


def check_parents(tokens: Sequence[int], parents: Sequence[int], first: int = 0) -> None:
    """Raise ValueError unless each of the new nodes, from number `first` on, has a parent before it, or the root."""
    if len(tokens) != len(parents):
        raise ValueError(f"{len(tokens)} tokens but {len(parents)} parents")
    for node, parent in enumerate(parents, start=first):
        if not ROOT <= parent < node:
            raise ValueError(f"parent {parent} of node {node} must be in {ROOT}..{node - 1}")


def check_path(path: Sequence[int], parents: Sequence[int]) -> int:
    """Return the end of a path through nodes with these parents. Raises ValueError where it is no chain."""
    end = ROOT
    for node in path:
        if not 0 <= node < len(parents) or parents[node] != end:
            raise ValueError(f"node {node} does not follow node {end}: a committed path is a chain from the root")
        end = node
    return end


def descendants(node: int, parents: Sequence[int]) -> list[int]:
    """Return all nodes below a node, ascending, of a tree whose nodes have these parents."""
    below = {node}
    for child in range(node + 1, len(parents)):
        if parents[child] in below:
            below.add(child)
    return sorted(below - {node})
