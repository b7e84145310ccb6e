"""Processing and coupled draws where the logits are: on a GPU, a whole batch at once, so that no logits travel to the
host (torch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from speculation.logits_processors import Context, LogitsProcessors
from speculation.sampling import SamplingScheme, StepDraws
from speculation.sampling.noise import BITS, blocks, key_words


@torch.no_grad()
def process_rows(logits: Tensor, processors: LogitsProcessors, contexts: Sequence[Context]) -> Tensor:
    """Return what `LogitsProcessors.process` returns of rows of logits [n, vocabulary], on their device.

    As transformers does, a penalty is computed in float32 where they are rounded further; in float64 where they are.
    """
    penalty = processors.penalty
    if penalty is not None:
        seen = [penalty.seen(context.answer) for context in contexts]
        places = np.stack([np.repeat(np.arange(len(seen)), [len(each) for each in seen]), np.concatenate(seen)])
        where = tuple(torch.from_numpy(places).to(logits.device))
        logits = logits.clone() if logits.dtype == torch.float64 else logits.to(torch.float32, copy=True)
        values = logits[where]
        logits[where] = torch.where(values < 0.0, values * penalty.factor, values / penalty.factor)
    if processors.grammar is not None:
        masks = processors.masks(contexts)
        left_out = [np.zeros(logits.shape[1], dtype=np.bool_) if mask is None else ~mask for mask in masks]
        logits = logits.masked_fill(torch.from_numpy(np.stack(left_out)).to(logits.device), -torch.inf)
    return logits


@torch.no_grad()
def choose_rows(
    logits: Tensor, settings: Sequence[SamplingScheme], draws: Sequence[StepDraws]
) -> list[tuple[int, float]]:
    """Return what `speculation.sampling.choose` returns of every row of logits [n, vocabulary], in float64.

    The random bits are those of numpy; the logarithms may differ in their last bits, as may top-p's sums. A row that is
    not finite gets the probability nan.
    """
    found: list[tuple[int, float]] = [(0, 0.0)] * len(logits)
    for each in dict.fromkeys(settings):
        rows = [index for index, own in enumerate(settings) if own == each]
        values = (logits if len(rows) == len(logits) else logits[rows]).double()
        if not each.greedy:
            outside = _outside(values / each.temperature, each)
            noise = gumbel_rows([draws[index] for index in rows], values.shape[1], values.device)
            values = (values + each.temperature * noise).masked_fill(outside, -torch.inf)
        peaks = values.amax(-1, keepdim=True)
        # argmax may return any of several equals on a GPU.
        places = torch.arange(values.shape[1], device=values.device)
        first = torch.where(values == peaks, places, values.shape[1]).amin(-1)
        chances = 1.0 / (values - peaks).exp().sum(-1)
        # In one copy to the host: float64 holds every column.
        for index, (column, chance) in zip(rows, torch.stack([first.double(), chances], -1).tolist(), strict=True):
            found[index] = (int(column), chance)
    return found


def gumbel_rows(draws: Sequence[StepDraws], vocabulary: int, device: torch.device) -> Tensor:
    """Return the standard Gumbel noise of all tokens [n, vocabulary] at several draws, float64."""
    words = [(*key_words(each.key), each.position) for each in draws]
    low, high, position = torch.tensor(words, device=device).T[:, :, None]
    pairs = torch.arange((vocabulary + 1) // 2, device=device)[None]
    bits = torch.stack(blocks(pairs, position, low, high), -1).flatten(1)[:, :vocabulary]
    return -torch.log(-torch.log((bits.double() + 0.5) * 2.0**-BITS))


def _outside(scaled: Tensor, settings: SamplingScheme) -> Tensor:
    outside = torch.zeros_like(scaled, dtype=torch.bool)
    if 0 < settings.top_k < scaled.shape[1]:
        outside = scaled < scaled.topk(settings.top_k).values[:, -1:]
    if settings.top_p < 1.0:
        ascending, order = scaled.masked_fill(outside, -torch.inf).sort(stable=True)
        dropped = ascending.softmax(-1).cumsum(-1) <= 1.0 - settings.top_p
        dropped[:, -1] = False
        outside |= dropped.scatter(1, order, dropped)
    return outside
