"""How well a draft model foresees its target: how often each of its candidates is the target's token, and from where.

No paper prints that for SpecEdge's pairs, and the answer decides what an edge can gain. So there are several models,
each brought to the tokens a verification that the paper does print, and every table is made for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from vlm_nav_evaluation.fleet.trees import Shape, best_tree, expected_tokens
from vlm_nav_evaluation.fleet.workload import Workload

ANSWERS, ANSWER_TOKENS = 24, 512
"""Answers, of so many tokens, over which tokens a verification are averaged."""
MOST_POWER = 16.0


@dataclass(frozen=True)
class Candidates:
    """Chances of a draft model's first, second, ... candidate, for each kind of answer position."""

    source: str
    kinds: tuple[tuple[float, ...], ...]
    """The draft model sees in advance of which kind a position is."""
    shares: tuple[float, ...] = (1.0,)
    """How many positions are of each kind."""
    stay: float = 0.0

    def workload(self, answer: int, prompt: int = 1) -> Workload:
        """Return requests whose answers have so many tokens."""
        return Workload(self.kinds, self.shares, (prompt, prompt), (answer, answer), stay=self.stay)

    def scaled(self, power: float) -> Candidates:
        """Return a better or a worse pair of models: the chance that none of the first k is right, to a power."""
        return replace(self, kinds=tuple(_raised(kind, power) for kind in self.kinds))

    def fitted(self, tokens: float, size: int, depth: int) -> Candidates:
        """Return the draft model whose trees of `size` and `depth` commit so many tokens a verification.

        Raises ValueError where no power brings them there.
        """
        low, high = 1.0 / MOST_POWER, MOST_POWER
        reached = [tokens_of(self.scaled(power), size, depth) for power in (low, high)]
        if not reached[0] <= tokens <= reached[1]:
            raise ValueError(f"{tokens} tokens a verification are outside {reached[0]:.2f} to {reached[1]:.2f}")
        for _ in range(10):
            middle = (low * high) ** 0.5
            below = tokens_of(self.scaled(middle), size, depth) < tokens
            low, high = (middle, high) if below else (low, middle)
        return self.scaled((low * high) ** 0.5)


def _raised(kind: Sequence[float], power: float) -> tuple[float, ...]:
    missed = np.maximum(0.0, 1.0 - np.cumsum([0.0, *kind])) ** power
    return tuple((missed[:-1] - missed[1:]).tolist())


@lru_cache(maxsize=1024)
def tokens_of(candidates: Candidates, size: int, depth: int) -> float:
    """Return the tokens that a verification of the best trees commits on average, the target's own included."""
    found: list[float] = []
    for number in range(ANSWERS):
        request, position = candidates.workload(ANSWER_TOKENS).request(0, number), 0
        while position + depth < ANSWER_TOKENS:
            levels = tuple(candidates.kinds[kind] for kind in request.kinds[position : position + depth])
            shape, expected = _tree(levels, size)
            found.append(expected)
            position += 1 + shape.accepted(request.ranks[position : position + depth])
    return float(np.mean(found))


@lru_cache(maxsize=4096)
def _tree(levels: tuple[tuple[float, ...], ...], size: int) -> tuple[Shape, float]:
    shape = best_tree(levels, size, len(levels))
    return shape, expected_tokens(shape, levels)


MODELS = {
    "stretches": Candidates(
        "declared: easy text comes in stretches; nearest, of 1,000 tried, to the means and spreads of tokens a "
        "verification in SpecEdge's Table 1 (32B), server-only and SpecEdge",
        ((0.992, 0.005), (0.47, 0.28, 0.17, 0.07)), (0.33, 0.67), 0.93,
    ),
    "embedded": Candidates(
        "measured: the embedded pair, 200 held-out frames, 5,307 tokens, greedy; kinds by the draft's probability of "
        "its first candidate (below 0.5, to 0.9, above)",
        ((0.534, 0.260, 0.110, 0.039, 0.020, 0.015), (0.754, 0.217, 0.023, 0.003), (0.9945, 0.0034, 0.0018)),
        (0.102, 0.173, 0.725), 0.135,
    ),
}  # fmt: skip
"""Name -> what is assumed, before it is brought to a pair."""
