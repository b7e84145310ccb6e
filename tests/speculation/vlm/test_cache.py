"""The cache's bookkeeping: what a row keeps, what it forgets, what it refuses, and who sees whom."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculation.vlm.blocks import BLOCK
from speculation.vlm.cache import PADDING, PADDING_PAIRS, KVCache
from speculation.vlm.forward import Chunk, forward
from speculation.vlm.model import Vlm
from tests.speculation.trees import trees

PARENTS = trees(least=1, most=4).map(lambda tree: tree[1])


def ancestors(parents: list[int], node: int) -> set[int]:
    return set() if node < 0 else {node} | ancestors(parents, parents[node])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.none() | PARENTS), min_size=1, max_size=3))
def test_a_chunk_sees_all_before_it_and_a_packed_row_its_own_slots_alone(
    target: Vlm, rows: list[tuple[int, int, list[int] | None]]
) -> None:
    """Held against a mask that is filled in cell by cell; None for a tree: a chunk of so many tokens."""
    cache = KVCache(target, 3, 12)
    for row, (held, _, _) in enumerate(rows):
        if held:
            cache.advance(cache.plan([row], [range(held)], {row: np.zeros((3, held), np.int64)}))
    prefixes = {row: np.full((3, count), 7) for row, (_, count, tree) in enumerate(rows) if tree is None}
    parents = [
        range(count) if tree is None else [held + each if each >= 0 else held - 1 for each in tree]
        for held, count, tree in rows
    ]
    plan = cache.plan(range(len(rows)), parents, prefixes)
    pairs = [fed * (held + fed) for (held, _, _), fed in zip(rows, plan.counts, strict=True)]
    width, view = max(plan.counts), max(held + fed for (held, _, _), fed in zip(rows, plan.counts, strict=True))
    unlike = len(rows) * width > PADDING * sum(plan.counts) or len(rows) * width * view > PADDING_PAIRS * sum(pairs)
    assert plan.packed == bool(prefixes or len(rows) == 1 or unlike)
    if not plan.packed:
        return
    blocks = [
        [[slot < held or (slot - held <= node if tree is None else slot - held in ancestors(tree, node))
          for slot in range(held + fed)] for node in range(fed)]
        for (held, _, tree), fed in zip(rows, plan.counts, strict=True)
    ]  # fmt: skip
    masks = [torch.tensor(block, dtype=torch.float32) for block in blocks]
    if len(rows) > 1:  # each fills whole blocks of the cache
        masks = [torch.nn.functional.pad(mask, (0, -mask.shape[1] % BLOCK)) for mask in masks]
    expected = torch.block_diag(*masks) > 0
    if plan.mask is None:
        causal = rows[0][0] == 0 and torch.equal(expected, expected.tril())
        assert len(rows) == 1 and (causal or expected.all())
    else:
        assert (plan.mask[0, 0] == expected).all()
    cache.advance(plan)
    for row, (held, count, tree) in enumerate(rows):
        assert cache.length[row] == (held + count if tree is None else held)
        assert cache.used[row] == held + (count if tree is None else len(tree))


def feed(vlm: Vlm, cache: KVCache, tree: list[int], row: int = 0) -> int:
    """Feed token 10 + i as node i of `tree` behind the prefix; return the slot of node 0."""
    first = cache.used[row]
    parents = [first + parent if parent >= 0 else cache.length[row] - 1 for parent in tree]
    forward(vlm, cache, [Chunk(row, [10 + node for node in range(len(tree))], parents)])
    return first


@pytest.mark.parametrize(
    ("path", "survivors", "sentence"),
    [
        ([3, 4], [], "slot 4 does not follow slot 3"),
        ([2], [], "slot 2 is not in the scratch 3..6"),
        ([7], [], "slot 7 is not in the scratch 3..6"),
        ([3], [6], "surviving slot 6 does not descend from slot 3"),
    ],
)
def test_keep_refuses_what_is_no_path(target: Vlm, path: list[int], survivors: list[int], sentence: str) -> None:
    cache = KVCache(target, 1, 16)
    feed(target, cache, [-1, 0, 1])
    cache.keep(0, [0, 1, 2])
    feed(target, cache, [-1, -1, 0, 2])
    with pytest.raises(ValueError, match=sentence):
        cache.keep(0, path, survivors)
    assert (cache.length, cache.used) == ([3], [7])


@pytest.mark.parametrize(
    ("chunks", "sentence"),
    [
        ([Chunk(0, [1], [-1]), Chunk(0, [1], [-1])], "distinct rows"),
        ([Chunk(0, [], [])], "row 0 was given no tokens"),
        ([Chunk(0, [1, 2], [-1])], "2 tokens but 1 parents"),
        ([Chunk(0, [1], [0])], "parent 0 of slot 0"),
        ([Chunk(0, [100000], [-1])], "token 100000 is outside the vocabulary"),
        ([Chunk(2, [1], [-1])], r"row 2 is not in 0\.\.1"),
    ],
)
def test_forward_refuses_wrong_chunks(target: Vlm, chunks: list[Chunk], sentence: str) -> None:
    cache = KVCache(target, 2, 8)
    with pytest.raises(ValueError, match=sentence):
        forward(target, cache, chunks)
    assert cache.used == [0, 0]


def test_size_is_checked_and_counted(target: Vlm) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        KVCache(target, 0, 8)
    values = 2 * target.num_layers * target.kv_heads * target.head_dim
    block = values * BLOCK * torch.finfo(target.dtype).bits // 8
    assert KVCache.block_bytes_by_device(target) == {target.device: block}
    # Each row fills two blocks; one more is the spare.
    assert KVCache(target, 3, 17).nbytes == 7 * block
    assert KVCache(target, 3, 17, blocks=4).nbytes == 5 * block
    with pytest.raises(ValueError, match="cache of 0 blocks: at least 1 is needed"):
        KVCache(target, 3, 8, blocks=0)
