"""Layers with joined projections compute what transformers' own do, in every family that they are known of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward, prefill
from speculation.vlm.fused import fused_layers
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.load_check import difference, library_logits, own_logits, small_question
from speculation.vlm.model import Vlm
from tests.models import TEXT_FAMILIES, check_tree, tiny_model, tiny_text_model

EXACT = 1e-12
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llama", "mistral", "qwen2", "qwen3"]


def load(folder: Path, family: str) -> Vlm:
    """Return a tiny model of which no layer has run yet."""
    changes = {"attention_bias": False} if family == "llama" else {}
    is_text = family in TEXT_FAMILIES
    folder = tiny_text_model(folder, family=family, **changes) if is_text else tiny_model(folder, family=family)
    return load_vlm(folder, dtype="float64", load_check=False)


def error(vlm: Vlm) -> float:
    question = small_question(vlm)
    return difference(own_logits(vlm, question), library_logits(vlm, question))


@pytest.mark.parametrize("family", FAMILIES)
def test_joined_projections_change_nothing(family: str, tmp_path: Path) -> None:
    vlm = load(tmp_path, family)
    assert fused_layers(vlm) is not None and error(vlm) < EXACT


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_tree_and_a_single_token_in_one_pass_are_each_as_alone(family: str, tmp_path: Path) -> None:
    vlm = load(tmp_path, family)
    assert fused_layers(vlm) is not None
    cache, prompts = KVCache(vlm, 2, 96), [prepare(vlm, text, None) for text in ("find the silver bottle", "stop")]
    trees: list[tuple[list[int], list[int]]] = [([4, 5, 6], [-1, 0, 0]), ([], [])]
    roots = [prefill(vlm, cache, row, inputs) for row, inputs in enumerate(prompts)]
    chunks = [draft_chunk(cache, row, root, *trees[row]) for row, root in enumerate(roots)]
    for inputs, tree, logits in zip(prompts, trees, forward(vlm, cache, chunks), strict=True):
        check_tree(vlm, inputs, tree, logits)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3", "llama"])
def test_layers_with_other_parts_are_run_by_their_own_modules(family: str, tmp_path: Path) -> None:
    vlm = load(tmp_path, family)
    vlm.text.layers[1].mlp.gate = nn.Linear(2, 2)
    assert fused_layers(vlm) is None and error(vlm) < EXACT


def test_weights_of_another_dtype_are_not_taken_for_the_joined_ones(tmp_path: Path) -> None:
    vlm = load(tmp_path, "qwen3")
    assert error(vlm) < EXACT
    vlm.model.to(torch.float32)
    assert own_logits(vlm, small_question(vlm)).dtype == torch.float32 and error(vlm) < 1e-5
