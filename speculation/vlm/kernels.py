"""A decoder layer's operations between its products as Triton kernels; Triton comes with torch's builds for GPUs.

What each computes is what the function of the same name in `speculation.vlm.fused` does, to which tests compare it on a
CPU with Triton's interpreter, and `speculation.vlm.graphs` on the GPU itself before it uses them. Attention reads keys
and values through the tables of blocks, no further than its row goes, and several programs share the keys of a row
(Flash-Decoding, Dao et al. 2023): one alone would walk along them while the GPU idles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from speculation.vlm.blocks import BLOCK
from speculation.vlm.fused import FusedLayer, Operations, Read

QUERIES, KEYS = 16, 64
"""Queries and keys that a program scores at a time."""
PROGRAMS = 256
"""Programs that keep a GPU busy: about two for each of its processors."""
MOST_PARTS = 16
"""Into which the keys of a row are cut."""
COLUMNS = 1024
"""Of the gate, that a program computes."""


def rotate_and_store(layer: FusedLayer, qkv: Tensor, kv: Tensor, read: Read) -> Tensor:
    """See `Operations.rotate_and_store`."""
    (_, kv_heads, slots, size), count = kv.shape, len(qkv)
    heads = qkv.shape[1] // size - 2 * kv_heads
    queries = qkv.new_empty((count, heads, size))
    norms = layer.head_norms
    _rotate_and_store[(count, heads + 2 * kv_heads)](
        qkv, qkv if norms is None else norms, read.cos, read.sin, read.slots, queries, kv, heads, kv_heads, slots,
        layer.eps, SIZE=size, PADDED=triton.next_power_of_2(size), NORMED=norms is not None,
    )  # fmt: skip
    return queries


def attend(queries: Tensor, kv: Tensor, read: Read) -> Tensor:
    """See `Operations.attend`; the queries are those of `rotate_and_store`, contiguous."""
    (count, heads, size), (_, kv_heads, slots, _) = queries.shape, kv.shape
    (rows, width, scratch), number = read.tree.shape, read.blocks.shape[1]
    asked = width * heads // kv_heads
    tiles = triton.cdiv(asked, QUERIES)
    wanted = min(triton.cdiv(PROGRAMS, rows * kv_heads * tiles), triton.cdiv(number * BLOCK, KEYS), MOST_PARTS)
    parts = triton.next_power_of_2(wanted)
    sums = queries.new_empty((parts, count, heads, size), dtype=torch.float32)
    weights = queries.new_empty((2, parts, count, heads), dtype=torch.float32)
    _score[(rows * kv_heads, tiles, parts)](
        queries, kv, read.blocks, read.lengths, read.tree, sums, weights, kv_heads, heads // kv_heads, width, number,
        slots, scratch, parts, count * heads, size**-0.5, SIZE=size, PADDED=triton.next_power_of_2(size),
        QUERIES=QUERIES, KEYS=KEYS, BLOCK=BLOCK,
    )  # fmt: skip
    found = queries.new_empty((count, heads * size))
    _weigh[(count * heads,)](
        sums, weights, found, count * heads, SIZE=size, PADDED=triton.next_power_of_2(size), PARTS=parts
    )
    return found


def gate(gate_up: Tensor) -> Tensor:
    """See `Operations.gate`."""
    count, both = gate_up.shape
    found = gate_up.new_empty((count, both // 2))
    _gate[(count, triton.cdiv(both // 2, COLUMNS))](gate_up, found, both // 2, COLUMNS=COLUMNS)
    return found


KERNELS = Operations(rotate_and_store, attend, gate, reads_bias=False)


@triton.jit
def _rotate_and_store(
    qkv, norms, cos, sin, places, queries, kv, heads, kv_heads, slots,
    eps, SIZE: tl.constexpr, PADDED: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """One head of one token."""
    token, head = tl.program_id(0), tl.program_id(1)
    own = tl.arange(0, PADDED)
    inside = own < SIZE
    other = tl.where(own < SIZE // 2, own + SIZE // 2, own - SIZE // 2)
    start = qkv + (token * (heads + 2 * kv_heads) + head) * SIZE
    values = tl.load(start + own, mask=inside, other=0.0).to(tl.float32)
    if head < heads + kv_heads:
        swapped = tl.load(start + other, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            scale = 1.0 / tl.sqrt(tl.sum(values * values) / SIZE + eps)
            values *= scale * tl.load(norms + head * SIZE + own, mask=inside, other=0.0).to(tl.float32)
            swapped *= scale * tl.load(norms + head * SIZE + other, mask=inside, other=0.0).to(tl.float32)
        values *= tl.load(cos + token * SIZE + own, mask=inside, other=0.0).to(tl.float32)
        values += swapped * tl.load(sin + token * SIZE + own, mask=inside, other=0.0).to(tl.float32)
    if head < heads:
        target = queries + (token * heads + head) * SIZE
        tl.store(target + own, values.to(queries.dtype.element_ty), mask=inside)
    else:
        slot = (head - heads).to(tl.int64) * slots + tl.load(places + token)
        tl.store(kv + slot * SIZE + own, values.to(kv.dtype.element_ty), mask=inside)


# A variant for each shape would take seconds to compile, in the middle of somebody's pass.
@triton.jit(do_not_specialize=["kv_heads", "group", "width", "number", "slots", "scratch", "parts", "total"])
def _score(
    queries, kv, blocks, lengths, tree, sums, weights, kv_heads, group,
    width, number, slots, scratch, parts, total, scale, SIZE: tl.constexpr,
    PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some queries of the heads that share keys, over a part of their row's keys."""
    row, kv_head, part = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads, tl.program_id(2)
    asked = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    real, token = asked < width * group, row * width + asked // group
    head = token * (kv_heads * group) + kv_head * group + asked % group
    own = tl.arange(0, PADDED)
    inside = own < SIZE
    query = tl.load(queries + head[:, None] * SIZE + own[None], mask=real[:, None] & inside[None], other=0.0)
    length = tl.load(lengths + row)
    end = tl.minimum(length + scratch, number * BLOCK)
    step = tl.cdiv(tl.cdiv(end, parts), KEYS) * KEYS
    peak = tl.full((QUERIES,), -1e30, tl.float32)
    share = tl.zeros((QUERIES,), tl.float32)
    found = tl.zeros((QUERIES, PADDED), tl.float32)
    for first in range(part * step, tl.minimum((part + 1) * step, end), KEYS):
        place = first + tl.arange(0, KEYS)
        there = place < end
        block = tl.load(blocks + row * number + place // BLOCK, mask=there, other=0)
        slot = block * BLOCK + place % BLOCK
        here = there[:, None] & inside[None]
        keys = tl.load(kv + (kv_head.to(tl.int64) * slots + slot)[:, None] * SIZE + own[None], mask=here, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        behind = (place - length)[None]
        drafted = real[:, None] & there[None] & (behind >= 0) & (behind < scratch)
        known = tl.load(tree + token[:, None] * scratch + behind, mask=drafted, other=0) != 0
        seen = there[None] & ((behind < 0) | known)
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        chances = tl.where(seen, tl.exp(scores - higher[:, None]), 0.0)
        less = tl.exp(peak - higher)
        share = share * less + tl.sum(chances, 1)
        values = (kv_head + kv_heads).to(tl.int64) * slots + slot
        values = tl.load(kv + values[:, None] * SIZE + own[None], mask=here, other=0.0)
        found = found * less[:, None] + tl.dot(chances.to(values.dtype), values, input_precision="ieee")
        peak = higher
    head += part * total
    tl.store(sums + head[:, None] * SIZE + own[None], found, mask=real[:, None] & inside[None])
    tl.store(weights + head, peak, mask=real)
    tl.store(weights + parts * total + head, share, mask=real)


@triton.jit(do_not_specialize=["total"])
def _weigh(sums, weights, found, total, SIZE: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr):
    """One head of one token: what its parts have found, each by its share."""
    head = tl.program_id(0)
    own, part = tl.arange(0, PADDED), tl.arange(0, PARTS) * total + head
    inside = own < SIZE
    peaks = tl.load(weights + part)
    scales = tl.exp(peaks - tl.max(peaks, 0))
    # A padding token may see nothing.
    whole = tl.maximum(tl.sum(scales * tl.load(weights + PARTS * total + part), 0), 1e-30)
    values = tl.load(sums + part[:, None] * SIZE + own[None], mask=inside[None], other=0.0)
    mean = tl.sum(scales[:, None] * values, 0) / whole
    tl.store(found + head * SIZE + own, mean.to(found.dtype.element_ty), mask=inside)


@triton.jit
def _gate(gate_up, found, width, COLUMNS: tl.constexpr):
    """Some columns of one token."""
    token, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    values = tl.load(gate_up + 2 * token * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * token + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    values = values / (1.0 + tl.exp(-values)) * up
    tl.store(found + token * width + column, values.to(found.dtype.element_ty), mask=inside)
