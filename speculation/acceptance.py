"""Which draft tokens stand, and what follows them: the rule that makes the target the only author (numpy)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from speculation.wire import ROOT

Logits = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Verdict:
    """What the target says about a draft: the accepted nodes `path`, root first, and the `token` after them.

    `confidence` is the probability of the whole verdict: the softmax score of one token (Fast and Cost-effective
    Speculative Edge-Cloud Decoding with Early Exits, Eq. 4), multiplied over the tokens on the path and `token`.
    """

    path: tuple[int, ...]
    token: int
    confidence: float


class AcceptanceRule(Protocol):
    """A way to judge drafts. `name` is what `Hello.sampling` says."""

    @property
    def name(self) -> str:
        """The name on the wire."""
        ...

    def judge(
        self, tokens: Sequence[int], parents: Sequence[int], logits: Logits, sampling: object | None = None
    ) -> Verdict:
        """Judge a draft tree of n nodes by the target's (or an exit's) logits [n + 1, vocabulary].

        Node i carries `tokens[i]` behind node `parents[i]` < i or ROOT; row 0 of the logits follows the root, row i + 1
        node i. `sampling` is the rule's own state of this step, which the caller only passes on: the key and answer
        position of coupled noise, the draft's probabilities for rejection. Raises ValueError for a malformed tree or
        logits that are not finite.
        """
        ...


@dataclass(frozen=True)
class Greedy:
    """Accept a node while it is its parent's likeliest next token (Leviathan et al., arXiv 2211.17192, temperature 0).

    Ties go to the lowest token id, and of siblings with one token the first counts. The rule knows no end of an answer:
    whoever commits cuts behind the first end token.
    """

    @property
    def name(self) -> str:
        """The name on the wire."""
        return "greedy"

    def judge(
        self, tokens: Sequence[int], parents: Sequence[int], logits: Logits, sampling: object | None = None
    ) -> Verdict:
        """Walk from the root to the likeliest child until there is none; see `AcceptanceRule.judge`."""
        children = _children(tokens, parents, logits)
        path: list[int] = []
        node, confidence = ROOT, 1.0
        while True:
            token, probability = _likeliest(logits[node + 1], node)
            confidence *= probability
            child = children.get((node, token))
            if child is None:
                return Verdict(tuple(path), token, confidence)
            path.append(child)
            node = child


def _likeliest(row: Logits, node: int) -> tuple[int, float]:
    token = int(np.argmax(row))
    peak = float(row[token])
    if not np.isfinite(peak):
        raise ValueError(f"logits after node {node} are not finite; the model's weights or inputs are broken")
    return token, 1.0 / float(np.exp(row.astype(np.float64) - peak).sum())


def _children(tokens: Sequence[int], parents: Sequence[int], logits: Logits) -> dict[tuple[int, int], int]:
    if len(tokens) != len(parents) or logits.ndim != 2 or len(logits) != len(tokens) + 1:
        raise ValueError(
            f"{len(tokens)} tokens, {len(parents)} parents and logits {list(logits.shape)} are no draft tree"
        )
    children: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not ROOT <= parent < node:
            raise ValueError(f"parent {parent} of node {node} must be in {ROOT}..{node - 1}")
        children.setdefault((parent, token), node)
    return children
