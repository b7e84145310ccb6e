"""Layers with joined projections equal transformers' own, in every family and for every kind of pass."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, PrefillChunk, draft_chunk, forward_layers, prefill
from speculation.vlm.fused import fused_layers, not_fusable
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.positions import text_positions
from speculation.vlm.speed import text_inputs
from tests.models import frame, tiny_model, tiny_text_model

EXACT = 1e-9
FAMILIES = [*itertools.product(["qwen2_vl", "qwen2_5_vl", "qwen3_vl"], [False]),
            *itertools.product(["llama", "mistral", "qwen2", "qwen3"], [True])]  # fmt: skip


def load(folder: Path, family: str, words_only: bool) -> Vlm:
    """Return a tiny model of which no layer has run yet."""
    changes = {"attention_bias": False} if family == "llama" else {}
    folder = tiny_text_model(folder, family=family, **changes) if words_only else tiny_model(folder, family=family)
    return load_vlm(folder, dtype="float64", load_check=False)


def passes(vlm: Vlm) -> list[torch.Tensor]:
    """Return what all layers make of two prompts, and then of a tree, a decode and a prompt that goes on, together and
    apart."""
    cache = KVCache(vlm, 3, 96)
    for row in range(2):
        words = text_inputs(10 + 5 * row)
        prefill(vlm, cache, row, prepare(vlm, "stop", frame(row)) if vlm.sees_images else words)
    found = []

    def chunk(row: int, start: int, count: int) -> PrefillChunk:
        positions = text_positions(start + count)[:, start:]
        return PrefillChunk(row, np.arange(start, start + count), positions, np.empty(0, dtype=np.int64))

    def tree(row: int) -> Chunk:
        return draft_chunk(cache, row, 3, [4, 5, 6], [-1, 0, 0])

    for chunks in (
        [chunk(2, 0, 7)],
        [tree(0)],
        [draft_chunk(cache, 0, 3, [], [])],
        [tree(0), tree(1)],
        [tree(0), draft_chunk(cache, 1, 3, [], []), chunk(2, 7, 9)],
    ):
        for output in forward_layers(vlm, cache, chunks):
            found += output.hidden
        for row in range(2):
            cache.truncate(row, cache.length[row])
    return found


@pytest.mark.parametrize(("family", "words_only"), FAMILIES)
def test_joined_projections_change_nothing(family: str, words_only: bool, tmp_path: Path) -> None:
    joined, own = (load(tmp_path / name, family, words_only) for name in ("joined", "own"))
    assert fused_layers(joined) is not None
    not_fusable.add(own.text)
    for one, other in zip(passes(joined), passes(own), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=EXACT)


def test_layers_with_other_parts_are_run_by_transformers(tmp_path: Path) -> None:
    changed, own = (load(tmp_path / name, "qwen2_vl", False) for name in ("changed", "own"))
    changed.text.layers[1].mlp.gate = nn.Linear(2, 2)
    assert fused_layers(changed) is None
    not_fusable.add(own.text)
    for one, other in zip(passes(changed), passes(own), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_weights_of_another_dtype_are_not_taken_for_the_joined_ones(tmp_path: Path) -> None:
    vlm = load(tmp_path / "model", "qwen3", True)
    passes(vlm)
    vlm.model.to(torch.float32)
    assert all(each.dtype == torch.float32 for each in passes(vlm))
