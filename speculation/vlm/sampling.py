"""Processing and coupled draws where the logits are: on a GPU, a whole batch at once, so that no logits travel to the
host (torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculation.logits_processors import START, UNPROCESSED, Context, LogitsProcessors
from speculation.sampling import SamplingScheme, StepDraws
from speculation.sampling.noise import BITS, blocks, key_words
from speculation.vlm.transfer import Array, upload


@dataclass(frozen=True)
class Place:
    """How the token at one place of an answer is chosen by its row of logits."""

    sampling: SamplingScheme
    draws: StepDraws
    processors: LogitsProcessors = UNPROCESSED
    context: Context = START


class Choices:
    """How the tokens at n places are chosen: made before the pass whose logits it is for, it needs no more of the host.

    Whatever it goes by is uploaded when it is made.
    """

    def __init__(self, places: Sequence[Place], vocabulary: int, device: torch.device) -> None:
        parts = _processing([(place.processors, place.context) for place in places], vocabulary)
        self._schemes = list(dict.fromkeys(place.sampling for place in places))
        for number, scheme in enumerate(self._schemes):
            rows = [row for row, place in enumerate(places) if place.sampling == scheme]
            parts[f"rows {number}"] = np.array(rows, dtype=np.int64)
            if not scheme.greedy:
                parts[f"words {number}"] = draw_words([places[row].draws for row in rows])
        self._given = upload(parts, device)

    @torch.no_grad()
    def choose(self, logits: Tensor) -> Tensor:
        """Return what `speculation.sampling.choose` returns of every row of logits [n, vocabulary]: [n, 2], float64.

        The random bits are those of numpy; the logarithms may differ in their last bits, as may top-p's sums. A row
        that is not finite gets the probability nan.
        """
        logits = _processed(logits, self._given)
        if len(self._schemes) == 1:
            return _chosen(logits, self._schemes[0], self._given.get("words 0"))
        found = torch.empty((len(logits), 2), dtype=torch.float64, device=logits.device)
        for number, scheme in enumerate(self._schemes):
            rows = self._given[f"rows {number}"]
            chosen = _chosen(logits.index_select(0, rows), scheme, self._given.get(f"words {number}"))
            found.index_copy_(0, rows, chosen)
        return found


@torch.no_grad()
def process_rows(logits: Tensor, processors: LogitsProcessors, contexts: Sequence[Context]) -> Tensor:
    """Return what `LogitsProcessors.process` returns of rows of logits [n, vocabulary], on their device.

    As transformers does, a penalty is computed in float32 where they are rounded further; in float64 where they are.
    """
    if not processors:
        return logits
    parts = _processing([(processors, context) for context in contexts], logits.shape[1])
    return _processed(logits, upload(parts, logits.device))


def draw_words(draws: Sequence[StepDraws]) -> Array:
    """Return what names draws on a device [n, 3]: the words of their keys, and their positions."""
    return np.array([(*key_words(each.key), each.position) for each in draws], dtype=np.int64).reshape(-1, 3)


def gumbel_rows(words: Tensor, vocabulary: int) -> Tensor:
    """Return the standard Gumbel noise of all tokens [n, vocabulary] at draws of these `draw_words`, float64."""
    low, high, position = words.T[:, :, None]
    pairs = torch.arange((vocabulary + 1) // 2, device=words.device)[None]
    bits = torch.stack(blocks(pairs, position, low, high), -1).flatten(1)[:, :vocabulary]
    return -torch.log(-torch.log((bits.double() + 0.5) * 2.0**-BITS))


def _processing(rows: Sequence[tuple[LogitsProcessors, Context]], vocabulary: int) -> dict[str, Array]:
    """Return what is done to rows of logits: `penalised` rows and tokens [2, m] and by what `factors`, and which tokens
    are `left_out` [n, vocabulary]; without what nobody asks for."""
    parts: dict[str, Array] = {}
    penalised, tokens, factors = list[Array](), list[Array](), list[Array]()
    for row, (processors, context) in enumerate(rows):
        if processors.penalty is not None:
            seen = processors.penalty.seen(context.answer)
            penalised.append(np.full(len(seen), row))
            tokens.append(seen)
            factors.append(np.full(len(seen), processors.penalty.factor))
    if tokens:
        parts["penalised"] = np.stack([np.concatenate(penalised), np.concatenate(tokens)])
        parts["factors"] = np.concatenate(factors)
    if any(processors.grammar is not None for processors, _ in rows):
        parts["left_out"] = np.zeros((len(rows), vocabulary), dtype=np.bool_)
        for left_out, (processors, context) in zip(parts["left_out"], rows, strict=True):
            (mask,) = processors.masks([context])
            if mask is not None:
                left_out[...] = ~mask
    return parts


def _processed(logits: Tensor, given: dict[str, Tensor]) -> Tensor:
    if "penalised" in given:
        logits = logits.clone() if logits.dtype == torch.float64 else logits.to(torch.float32, copy=True)
        where, factors = given["penalised"].unbind(), given["factors"].to(logits.dtype)
        values = logits[where]
        logits[where] = torch.where(values < 0.0, values * factors, values / factors)
    return logits.masked_fill(given["left_out"], -torch.inf) if "left_out" in given else logits


def _chosen(logits: Tensor, scheme: SamplingScheme, words: Tensor | None) -> Tensor:
    """Return the token and its probability of each row [n, 2]; `words` where tokens are drawn at random."""
    values = logits.double()
    if words is not None:
        outside = _outside(values / scheme.temperature, scheme)
        noise = gumbel_rows(words, values.shape[1])
        values = (values + scheme.temperature * noise).masked_fill(outside, -torch.inf)
    peaks = values.amax(-1, keepdim=True)
    # argmax may return any of several equals on a GPU.
    places = torch.arange(values.shape[1], device=values.device)
    first = torch.where(values == peaks, places, values.shape[1]).amin(-1)
    chances = 1.0 / (values - peaks).exp().sum(-1)
    # One tensor, as it is one copy to the host: float64 holds every column.
    return torch.stack([first.double(), chances], -1)


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
