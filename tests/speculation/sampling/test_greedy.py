"""Greedy verdicts against enumeration of every chain."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from speculation.acceptance import Verdict
from speculation.sampling import AcceptanceRule, Greedy, Logits
from tests.speculation.trees import VOCABULARY, judged_drafts


def enumerated_verdict(tokens: list[int], parents: list[int], logits: Logits) -> Verdict:
    """Enumerate every chain from the root, keep those that greedy decoding alone would give, take the longest."""

    def first_best(row: Logits) -> int:
        return min(token for token in range(VOCABULARY) if row[token] == max(row))

    def chance(row: Logits, token: int) -> float:
        return math.exp(row[token]) / sum(math.exp(value) for value in row)

    def chains(node: int) -> list[list[int]]:
        below = [child for child in range(len(tokens)) if parents[child] == node]
        return [[]] + [[child, *rest] for child in below for rest in chains(child)]

    def is_greedy(chain: list[int]) -> bool:
        firsts = [
            next(s for s in range(node + 1) if (parents[s], tokens[s]) == (parents[node], tokens[node]))
            for node in chain
        ]
        before = [-1, *chain[:-1]] if chain else []
        right = all(tokens[node] == first_best(logits[b + 1]) for node, b in zip(chain, before, strict=True))
        return right and firsts == chain

    path = max((chain for chain in chains(-1) if is_greedy(chain)), key=len)
    end = path[-1] if path else -1
    token = first_best(logits[end + 1])
    confidence = chance(logits[end + 1], token)
    for before, node in zip([-1, *path[:-1]], path, strict=False):
        confidence *= chance(logits[before + 1], tokens[node])
    return Verdict(tuple(path), token, confidence)


@given(judged_drafts())
def test_equals_enumeration(draft: tuple[list[int], list[int], Logits]) -> None:
    rule: AcceptanceRule = Greedy()
    verdict, expected = rule.judge(*draft), enumerated_verdict(*draft)
    assert (verdict.path, verdict.token) == (expected.path, expected.token)
    assert verdict.confidence == pytest.approx(expected.confidence, rel=1e-12)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(broken: float) -> None:
    logits = np.array([[0.0, 1.0], [0.0, broken]])
    with pytest.raises(ValueError, match="logits after node 0 are not finite"):
        Greedy().judge([1], [-1], logits)
    assert Greedy().judge([0], [-1], logits).path == ()  # the broken row is never asked
