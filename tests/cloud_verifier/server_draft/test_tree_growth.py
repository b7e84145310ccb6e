"""Growing a draft tree: the likeliest tokens of all that were proposed, and nothing without its path."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.server_draft.tree_growth import Growth
from speculation.wire import ROOT

Path = tuple[int, ...]


def likely(seed: int, path: Path, vocabulary: int) -> list[tuple[int, float]]:
    """Return next tokens after a path, likeliest first."""
    rng = random.Random(f"{seed} {path}")
    weights = [rng.random() ** 4 for _ in range(vocabulary)]
    tokens = sorted(range(vocabulary), key=lambda token: -weights[token])
    return [(token, math.log(weights[token] / sum(weights))) for token in tokens]


def exhaustive(seed: int, size: int, depth: int, vocabulary: int, ends: int) -> dict[Path, float]:
    """Return the best tree by sorting everything after every forward."""
    found: dict[Path, float] = {}
    leaves: list[Path] = [()]
    for _ in range(depth):
        above = {(): 0.0} | found
        new = {(*leaf, token): above[leaf] + log for leaf in leaves for token, log in likely(seed, leaf, vocabulary)}
        found = dict(sorted({**found, **new}.items(), key=lambda each: (-each[1], each[0] in new))[:size])
        leaves = [path for path in found if path in new and path[-1] >= ends]
    return found


@given(
    seed=st.integers(0, 999), size=st.integers(1, 20), depth=st.integers(1, 5), vocabulary=st.integers(1, 6),
    ends=st.integers(0, 2),
)  # fmt: skip
def test_the_likeliest_tokens_stay_each_with_its_path(
    seed: int, size: int, depth: int, vocabulary: int, ends: int
) -> None:
    growth, paths, forwards = Growth(size, depth, range(ends)), {ROOT: ()}, 0
    while growth.leaves:
        forwards += 1
        proposals = [likely(seed, paths[leaf], vocabulary) for leaf in growth.leaves]
        growth.grow(proposals)
        for leaf in growth.leaves:
            paths[leaf] = (*paths[growth[leaf].parent], growth[leaf].token)
            assert growth[leaf].token >= ends
    tree = growth.tree
    assert forwards <= depth and tree.levels[-1] <= depth and len(tree.tokens) <= size
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert list(tree.reach) == sorted(tree.reach, reverse=True)
    drafted: list[Path] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        drafted.append((token,) if parent == ROOT else (*drafted[parent], token))
    assert set(drafted) == set(exhaustive(seed, size, depth, vocabulary, ends))
