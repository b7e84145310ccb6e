"""Own kernels against the functions that they stand for: compiled on a GPU, else in Triton's interpreter.

torch's build for CPUs comes without Triton: `pip install triton` lets these run there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from speculation.vlm.blocks import BLOCK
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward, prefill
from speculation.vlm.fused import PLAIN, FusedLayer, Read
from speculation.vlm.graphs import PassGraphs
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from tests.models import frame, tiny_model

pytest.importorskip("triton", reason="torch brings Triton for GPUs alone")

from speculation.vlm import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}
# The interpreter takes bfloat16 for integers.
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
BLOCKS = 6
SHAPES = [(1, 1, 1), (2, 3, 5)]
"""Rows, tokens a row, and slots behind a prefix."""
HEADS = [(4, 2, 16), (6, 2, 80)]
"""Heads, those of keys, and the width of each."""


def made(shape: tuple[int, int, int], heads: tuple[int, int, int], dtype: torch.dtype, normed: bool) -> dict[str, Any]:
    """Return a random layer's queries, keys and values, what it reads, and a pool."""
    torch.manual_seed(0)
    (rows, width, scratch), (queries, keys, size) = shape, heads
    count, norms = rows * width, torch.rand(queries + keys, size, device=DEVICE, dtype=dtype)
    nothing = torch.empty(0)
    layer = FusedLayer(nothing, nothing, None, norms if normed else None, nothing, nothing, nothing, nothing, 1e-6)
    given = {
        "slots": torch.randperm(BLOCKS * BLOCK, device=DEVICE)[:count],
        "blocks": torch.stack([torch.randperm(BLOCKS, device=DEVICE) for _ in range(rows)]),
        "lengths": torch.randint(1, BLOCKS * BLOCK - scratch, (rows,), device=DEVICE),
        "tree": torch.rand(rows, width, scratch, device=DEVICE) < 0.5,
    }
    angles = torch.rand(rows, width, size // 2, device=DEVICE).repeat(1, 1, 2) * 6.0
    read = Read.of(given, (angles.cos().to(dtype), angles.sin().to(dtype)))
    qkv = torch.randn(count, (queries + 2 * keys) * size, device=DEVICE).to(dtype)
    kv = torch.randn(2, keys, (BLOCKS + 1) * BLOCK, size, device=DEVICE).to(dtype)
    return {"layer": layer, "qkv": qkv, "kv": kv, "read": read}


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_compute_what_torch_does(
    dtype: torch.dtype, shape: tuple[int, int, int], heads: tuple[int, int, int], normed: bool
) -> None:
    how, pools, queries = made(shape, heads, dtype, normed), list[Tensor](), list[Tensor]()
    for operations in (PLAIN, kernels.KERNELS):
        pools.append(how["kv"].clone())
        queries.append(operations.rotate_and_store(how["layer"], how["qkv"].clone(), pools[-1], how["read"]))
    near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
    torch.testing.assert_close(queries[1], queries[0].contiguous(), **near)
    torch.testing.assert_close(pools[1], pools[0], **near)
    asked = queries[0].contiguous()
    found = [each.attend(asked, pools[0], how["read"]) for each in (PLAIN, kernels.KERNELS)]
    torch.testing.assert_close(found[1], found[0], **near)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gate_is_torchs(dtype: torch.dtype) -> None:
    both = torch.randn(3, 2 * (kernels.COLUMNS + 7), device=DEVICE).to(dtype)
    near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
    torch.testing.assert_close(kernels.gate(both), PLAIN.gate(both.clone()), **near)


def test_a_token_that_sees_nothing_is_finite() -> None:
    """Padding behind an empty row."""
    how = made((1, 2, 2), HEADS[0], torch.float32, normed=False)
    how["read"].lengths.zero_()
    how["read"].tree.zero_()
    queries = how["qkv"].view(2, -1, 16)[:, :4].contiguous()
    assert kernels.attend(queries, how["kv"], how["read"]).isfinite().all()


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_a_pass_by_kernels_is_that_of_transformers_layers(family: str, tmp_path: Path) -> None:
    vlm = load_vlm(tiny_model(tmp_path, family=family, layers=2), dtype="float32", device=DEVICE)
    cache, chunk, found = KVCache(vlm, 1, 64), ([4, 5, 6], [-1, 0, 0]), []
    root = prefill(vlm, cache, 0, prepare(vlm, "stop", frame(1)))
    graphs = PassGraphs(vlm, cache, [0])
    graphs._operations = kernels.KERNELS
    for own in (None, graphs):
        found += forward(vlm, cache, [draft_chunk(cache, 0, root, *chunk)], graphs=own)
        cache.truncate(0, cache.length[0])
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-4)
