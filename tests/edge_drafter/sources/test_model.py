from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.sources.model import propose
from speculation.distributions import Distributions
from tests.speculation.test_predictor import network


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(-30, 30), min_size=5, max_size=5), min_size=1, max_size=6),
    st.integers(1, 7),
    st.sets(st.integers(0, 4)),
    st.booleans(),
)
def test_rows_propose_what_each_would_alone(
    logits: list[list[int]], width: int, also: set[int], has_predictor: bool
) -> None:
    """The twin makes one proposal after another, from a sorted softmax."""
    predictor = network(1) if has_predictor else None
    rows = np.array(logits) / 3.0
    depths = list(range(1, len(rows) + 1))
    for row, depth, found in zip(
        rows, depths, propose(Distributions(rows), depths, [tuple(also)] * len(rows), predictor, width), strict=True
    ):
        softmax = np.exp(row) / np.exp(row).sum()
        ranked = sorted(range(5), key=lambda token: (-row[token], token))
        first = softmax[ranked[0]] if predictor is None else predictor.chances(Distributions(row[None]), [depth])[0]
        rest = (1 - first) / (1 - softmax[ranked[0]])
        tokens = ranked[:width] + [token for token in also if token not in ranked[:width]]
        assert [token for token, _ in found] == tokens
        expected = [first, *(rest * softmax[token] for token in tokens[1:])]
        assert [chance for _, chance in found] == pytest.approx(expected, abs=1e-9)
