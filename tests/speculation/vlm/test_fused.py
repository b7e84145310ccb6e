"""Layers with joined projections compute what transformers' own do, in every family that they are known of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from speculation.vlm.fused import fused_layers
from speculation.vlm.load import load_vlm
from speculation.vlm.load_check import difference, library_logits, own_logits, small_question
from speculation.vlm.model import Vlm
from tests.models import TEXT_FAMILIES, tiny_model, tiny_text_model

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


def test_layers_with_other_parts_are_run_by_their_own_modules(tmp_path: Path) -> None:
    vlm = load(tmp_path, "qwen2_vl")
    vlm.text.layers[1].mlp.gate = nn.Linear(2, 2)
    assert fused_layers(vlm) is None and error(vlm) < EXACT


def test_weights_of_another_dtype_are_not_taken_for_the_joined_ones(tmp_path: Path) -> None:
    vlm = load(tmp_path, "qwen3")
    assert error(vlm) < EXACT
    vlm.model.to(torch.float32)
    assert own_logits(vlm, small_question(vlm)).dtype == torch.float32 and error(vlm) < 1e-5
