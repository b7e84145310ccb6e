"""The best tree is the best of all, and its heads are what comes next."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.wire import ROOT
from vlm_nav_evaluation.fleet.trees import best_tree, expected_tokens

CHANCES = st.lists(st.floats(0.01, 0.9), min_size=1, max_size=3).map(lambda each: tuple(sorted(each, reverse=True)))
LEVELS = st.lists(CHANCES, min_size=1, max_size=4).map(tuple)


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_the_best_tree_has_the_largest_products(
    levels: tuple[tuple[float, ...], ...], size: int, depth: int, heads: int
) -> None:
    shape = best_tree(levels, size, depth, heads)
    every = [
        path
        for length in range(1, len(levels) + 1)
        for path in itertools.product(*(range(len(level)) for level in levels[:length]))
    ]
    value = {path: math.prod(levels[place][rank] for place, rank in enumerate(path)) for path in every}
    within = sorted((value[path] for path in every if len(path) <= depth), reverse=True)
    assert [value[node] for node in shape.nodes] == pytest.approx(within[:size])
    assert expected_tokens(shape, levels) == pytest.approx(1.0 + sum(within[:size]))
    for node, parent in zip(shape.nodes, shape.parents, strict=True):
        assert (shape.nodes[parent] if parent != ROOT else ()) == node[:-1]
    known = {(), *shape.nodes}
    next_ones = sorted((value[path] for path in every if path not in known and path[:-1] in known), reverse=True)
    assert sorted((value[head] for head in shape.heads), reverse=True) == pytest.approx(next_ones[:heads])
    assert shape.chances == pytest.approx([value[head] for head in shape.heads])
