"""Attention over a line of packed questions is that over whole rows with a mask, the slow exact reference."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adapters_training.attention import for_training, layout
from adapters_training.losses import read, see
from adapters_training.packing import PADDING, Batch, Packer, packed_mask
from adapters_training.shapes import Shape, build_model, known_objects
from speculation.vlm.processing import Processor
from tests.adapters_training.frames import TINY, make_frame

GROUPED = replace(TINY, heads=4, kv_heads=2)


def batch(processor: Processor, frames: int = 3, answers: bool = True) -> Batch:
    packer, dice = Packer(processor.tokenizer, known_objects()), random.Random(1)
    made = [make_frame(np.random.default_rng(seed)) for seed in range(frames)]
    # rows of different lengths: padding, and short questions beside long ones
    made[0] = msgspec.structs.replace(made[0], tasks=made[0].tasks[:1])
    return packer.batch(made, dice, augment=False, answers=answers).with_pixels(processor)


def whole_rows(model: Any, batch: Batch, image_tokens: Tensor) -> Tensor:
    """Return the last hidden states [B, N, hidden]; all pairs of a row are computed, and masked."""
    language, image = model.model.language_model, batch.image_slice
    embedded = language.embed_tokens(batch.ids)
    parts = embedded[:, : image.start], image_tokens.to(embedded.dtype), embedded[:, image.stop :]
    hidden = torch.cat(parts, dim=1)
    rotary = language.rotary_emb(hidden, batch.positions)
    for layer in language.layers:
        hidden = layer(hidden, attention_mask=batch.mask, position_embeddings=rotary)
    result: Tensor = language.norm(hidden)
    return result


def states_and_gradient(model: Any, data: Batch, line: bool, rounded: bool) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
        image = see(model, data.pixels.to(model.dtype))
        states = read(model, data, image)[-1] if line else whole_rows(model, data, image)
    real = torch.zeros(data.ids.numel(), dtype=torch.bool).index_fill(0, data.layout.tokens, True).view(data.ids.shape)
    chosen = states[real].float() if rounded else states[real]
    (chosen * torch.linspace(-1, 1, chosen.shape[-1], dtype=chosen.dtype)).sum().backward()  # type: ignore[no-untyped-call]
    gradient = model.model.language_model.layers[0].self_attn.k_proj.weight.grad
    return chosen.detach(), gradient


@pytest.mark.parametrize("shape", [TINY, GROUPED])
@pytest.mark.parametrize("answers", [True, False])
def test_a_line_has_the_states_and_gradients_of_whole_rows(processor: Processor, shape: Shape, answers: bool) -> None:
    data = batch(processor, answers=answers)
    found = []
    for line in (True, False):
        model = build_model(shape, processor.tokenizer, seed=0).double()
        if line:
            for_training(model)
        found.append(states_and_gradient(model, data, line, rounded=False))
    for own, reference in zip(*found, strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-9, atol=1e-9)


def test_in_bfloat16_it_is_sdpa_up_to_rounding(processor: Processor) -> None:
    data = batch(processor)
    found = []
    for line in (True, False):
        model = build_model(TINY, processor.tokenizer, seed=0)
        if line:
            for_training(model)
        found.append(states_and_gradient(model, data, line, rounded=True))
    (own, own_gradient), (reference, gradient) = found
    torch.testing.assert_close(own, reference, rtol=0.0, atol=0.05 * float(reference.abs().max()))
    torch.testing.assert_close(own_gradient, gradient, rtol=0.0, atol=0.05 * float(gradient.abs().max()))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=4), st.integers(1, 4))
def test_a_layout_lets_a_token_see_what_the_mask_does(rows: list[list[int]], prefix: int) -> None:
    width = prefix + max(map(sum, rows)) + 1
    blocks = torch.full((len(rows), width), PADDING)
    blocks[:, :prefix] = 0
    for row, lengths in enumerate(rows):
        at = prefix
        for number, length in enumerate(lengths, 1):
            blocks[row, at : at + length] = number
            at += length
    where, mask = layout(blocks, prefix), packed_mask(blocks)[:, 0]
    assert where.tokens.tolist() == (blocks.flatten() >= 0).nonzero()[:, 0].tolist()
    seen = [
        (place, key) for places in where.prefixes.tolist() for n, place in enumerate(places) for key in places[: n + 1]
    ]
    kept = set(where.back.tolist())
    for question, (places, keys) in enumerate(zip(where.questions.tolist(), where.keys.tolist(), strict=True)):
        for n, place in enumerate(places):
            if where.prefixes.numel() + question * len(places) + n in kept:
                seen += [(place, key) for key, sees in zip(keys, where.seen[0, 0, n].tolist(), strict=True) if sees]
    real = where.tokens.tolist()
    expected = [
        (own, other)
        for own, a in enumerate(real)
        for other, b in enumerate(real)
        if a // width == b // width and mask[a // width, a % width, b % width]
    ]
    assert sorted(seen) == expected
    shuffled = torch.randn(len(rows), width, 3)
    line = where.line(shuffled)
    assert torch.equal(where.line(where.rows(line, shuffled)), line)
