"""What one row holds reaches no other, and a row that changes under a forward voids it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from speculation.vlm.blocks import BLOCK
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, forward
from speculation.vlm.model import Vlm


def filled(vlm: Vlm, rows: int) -> KVCache:
    """Return a cache whose last row needs two blocks and whose others need one."""
    cache = KVCache(vlm, rows, 2 * BLOCK)
    for row in range(rows):
        count = BLOCK + 4 if row == rows - 1 else BLOCK - 3
        forward(vlm, cache, [Chunk(row, [5 + row] * count, cache.chain(row, count))])
        cache.keep(row, range(count))
    return cache


def test_what_is_read_behind_a_short_row_are_its_own_numbers(target: Vlm) -> None:
    """A mask takes the weight of a slot, but a weight of 0 times a value that is no number is no number either."""
    logits = []
    for spoilt in (False, True):
        cache = filled(target, 3)
        if spoilt:
            cache._slots(cache._tables[0][0])[0].fill_(torch.nan)
        chunks = [Chunk(row, [7], [cache.length[row] - 1]) for row in (1, 2)]
        plan = cache.plan([1, 2], [chunk.parents for chunk in chunks])
        assert not plan.packed and plan.view > BLOCK, "one row is read at the width of the other"
        logits.append(forward(target, cache, chunks))
    for whole, spoilt_too in zip(*logits, strict=True):
        np.testing.assert_array_equal(whole, spoilt_too)


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.clear(0),
        lambda cache: cache.truncate(0, 5),
        lambda cache: cache.advance(cache.plan([0], [[cache.length[0] - 1]])),
    ],
)
def test_a_row_that_is_changed_under_a_forward_voids_it(target: Vlm, change: Callable[[KVCache], None]) -> None:
    cache = filled(target, 1)
    plan = cache.plan([0], [[cache.length[0] - 1]])
    change(cache)
    with pytest.raises(RuntimeError, match="changed while a forward"):
        cache.advance(plan)
