"""The frozen target's forward over a batch: one pass gives every exit what it learns from.

It runs without gradients, so no activations are kept and there is nothing to checkpoint; the large tensors of a step
are the logits of one exit, of which only `head_tokens` tokens' worth exist at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adapters_training.frozen_target.batches import Batch
from adapters_training.packing import IGNORE
from speculation.exits import ExitHeads
from speculation.vlm.forward import final_logits
from speculation.vlm.model import Vlm


@dataclass(frozen=True)
class Features:
    """Hidden states of the n labelled tokens of a batch."""

    hidden: dict[int, Tensor]
    """Outputs of layers [n, hidden], before the final norm."""
    last: Tensor
    """Output of the last layer [n, hidden], before the final norm."""
    labels: Tensor
    """[n]."""


@torch.no_grad()
def read(vlm: Vlm, batch: Batch, layers: Sequence[int]) -> Features:
    """Run the target over a batch on its device and keep what comes out of `layers` and of the last one."""
    select = batch.labels != IGNORE
    kept, last = {}, torch.empty(0)
    for index, hidden in outputs(vlm, batch):
        last = hidden
        if index in layers:
            kept[index] = hidden[select]
    return Features(kept, last[select], batch.labels[select])


@torch.no_grad()
def outputs(vlm: Vlm, batch: Batch) -> Iterator[tuple[int, Tensor]]:
    """Run the target over a batch on its device and yield what comes out of each layer [B, N, hidden]."""
    text = vlm.text
    embeds, added = text.embed_tokens(batch.ids), list[Tensor]()
    places = torch.zeros_like(batch.ids, dtype=torch.bool)
    if batch.pixels is not None and batch.grids is not None:
        seen = vlm.family.see(vlm.model, batch.pixels.to(vlm.dtype), batch.grids.tolist())
        added, places = list(seen.added), batch.ids == vlm.image_token
        embeds = embeds.masked_scatter(places[..., None], seen.features.to(embeds.dtype))
    rotary = vlm.rotary(embeds, batch.positions)
    hidden = embeds
    for index, layer in enumerate(text.layers):
        hidden = layer(hidden, attention_mask=batch.mask, position_embeddings=rotary)
        if index < len(added):
            hidden[places] += added[index].to(hidden.dtype)
        yield index, hidden


def exit_logits(vlm: Vlm, heads: ExitHeads, layer: int, hidden: Tensor) -> Tensor:
    """Return what an exit in training makes of a layer's output, logits [n, vocabulary].

    `ExitHeads.logits` runs the adapter in the target's dtype; here it stays in float32, where small steps add up.
    """
    adapter = heads.adapters[str(layer)]
    weight = next(adapter.parameters())
    return final_logits(vlm, adapter(hidden.to(weight.dtype)).to(vlm.dtype))
