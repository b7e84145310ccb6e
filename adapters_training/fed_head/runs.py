"""Answers out of a batch as a head reads them: runs of entries with the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.hidden_states import outputs
from adapters_training.packing import IGNORE
from speculation.vlm.model import Vlm


@dataclass(frozen=True)
class Runs:
    """R answers, each behind the last tokens of its prompt; entries lie on the left, padding behind them."""

    tokens: Tensor
    """[R, n]."""
    hidden: list[Tensor]
    """For each layer that makes features: its outputs for the token *before* each entry [R, n, hidden]."""
    labels: Tensor
    """[R, n], what follows each entry; IGNORE in prompts and padding."""
    last: Tensor
    """Output of the last layer [R, n, hidden], before the final norm: what the target makes of each entry."""


def spans(labels: Tensor, positions: Tensor, prompt_tokens: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (row, first entry, first with a label, end) of every answer of a batch.

    `labels` [B, N] and `positions` [B, N] of the text. In front of the first label, which stands at the prompt's last
    token, there are `prompt_tokens` - 1 entries more at most: as long as tokens follow one another, which those of an
    image, and of two questions about one image, do not. The first of them needs a token before it, too.
    """
    follows = torch.zeros_like(labels, dtype=torch.bool)
    follows[:, 1:] = positions[:, 1:] == positions[:, :-1] + 1
    for row, (labelled, joined) in enumerate(zip((labels != IGNORE).tolist(), follows.tolist(), strict=True)):
        at = 0
        while at < len(labelled):
            if not labelled[at]:
                at += 1
                continue
            end = at + 1
            while end < len(labelled) and labelled[end] and joined[end]:
                end += 1
            first = at
            while first > max(0, at - prompt_tokens + 1) and joined[first - 1] and joined[first]:
                first -= 1
            if joined[first]:
                yield row, first, at, end
            at = end


def gather(vlm: Vlm, batch: Batch, layers: Sequence[int], prompt_tokens: int) -> Runs | None:
    """Run the target over a batch on its device and return its answers; None where there are none.

    `layers` are those that make features; an answer has at most `prompt_tokens` entries of its prompt, one at least.
    """
    found = list(spans(batch.labels.cpu(), batch.positions[0].cpu(), max(1, prompt_tokens)))
    if not found:
        return None
    width, device = max(end - first for _, first, _, end in found), batch.ids.device
    rows = torch.tensor([row for row, *_ in found], device=device)[:, None]
    firsts = torch.tensor([first for _, first, _, _ in found], device=device)[:, None]
    ends = torch.tensor([end for *_, end in found], device=device)[:, None]
    places = firsts + torch.arange(width, device=device)
    inside = places < ends
    places = places.where(inside, firsts)
    begin = torch.tensor([at for _, _, at, _ in found], device=device)[:, None]
    labels = batch.labels[rows, places].masked_fill(~inside | (places < begin), IGNORE)
    kept, last = {}, torch.empty(0)
    for index, hidden in outputs(vlm, batch):
        last = hidden
        if index in layers:
            kept[index] = hidden[rows, places - 1]
    return Runs(batch.ids[rows, places], [kept[layer] for layer in layers], labels, last[rows, places])
