"""What exits are worth: how often each one's token is the last layer's, on data that they were not trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.target import read
from speculation.exits import ExitHeads, measure_reliability
from speculation.vlm.forward import final_logits
from speculation.vlm.load import Vlm


@dataclass
class _Tally:
    """Of one exit: confidences and agreement of every token; sums of agreement without adapter, CE and KL."""

    confidences: list[Tensor] = field(default_factory=list)
    agreed: list[Tensor] = field(default_factory=list)
    bare: int = 0
    cross_entropy: float = 0.0
    divergence: float = 0.0
    bare_cross_entropy: float = 0.0
    bare_divergence: float = 0.0


@torch.no_grad()
def measure(vlm: Vlm, heads: ExitHeads, batches: Iterable[Batch], head_tokens: int) -> dict[str, Any]:
    """Measure every exit, as it is served, and set its reliability table.

    Returns by layer, with its adapter and without, how often an exit's first choice is the last layer's, and the mean
    cross-entropy to the data and divergence (nats) from the last layer; `tokens` is how many were judged. Raises
    ValueError without a token to judge.
    """
    tallies = {layer: _Tally() for layer in heads.layers}
    tokens = 0
    for batch in batches:
        features = read(vlm, batch.to(vlm.device), heads.layers)
        for at in range(0, len(features.labels), head_tokens):
            part = slice(at, at + head_tokens)
            labels = features.labels[part]
            tokens += len(labels)
            truth = final_logits(vlm, features.last[part]).float().log_softmax(-1)
            for layer, tally in tallies.items():
                _judge(vlm, heads, layer, features.hidden[layer][part], truth, labels, tally)
    if not tokens:
        raise ValueError("the held-out data hold no token to measure exits on")
    agreed = {layer: torch.cat(tally.agreed) for layer, tally in tallies.items()}
    heads.set_reliability(
        {
            layer: measure_reliability(torch.cat(tally.confidences).tolist(), agreed[layer].tolist())
            for layer, tally in tallies.items()
        }
    )
    return {
        "tokens": tokens,
        "agreement": {layer: float(hits.double().mean()) for layer, hits in agreed.items()},
        "agreement without adapter": {layer: tally.bare / tokens for layer, tally in tallies.items()},
        "cross-entropy": {layer: tally.cross_entropy / tokens for layer, tally in tallies.items()},
        "divergence": {layer: tally.divergence / tokens for layer, tally in tallies.items()},
        "cross-entropy without adapter": {layer: each.bare_cross_entropy / tokens for layer, each in tallies.items()},
        "divergence without adapter": {layer: each.bare_divergence / tokens for layer, each in tallies.items()},
    }


def _judge(
    vlm: Vlm, heads: ExitHeads, layer: int, hidden: Tensor, truth: Tensor, labels: Tensor, tally: _Tally
) -> None:
    log = heads.logits(layer, hidden).float().log_softmax(-1)
    confidence, token = log.exp().max(-1)
    final = truth.argmax(-1)
    tally.confidences.append(confidence.cpu())
    tally.agreed.append((token == final).cpu())
    bare = final_logits(vlm, hidden).float().log_softmax(-1)
    tally.bare += int((bare.argmax(-1) == final).sum())
    tally.bare_cross_entropy += float(F.nll_loss(bare, labels, reduction="sum"))
    tally.bare_divergence += float(F.kl_div(bare, truth, log_target=True, reduction="sum"))
    tally.cross_entropy += float(F.nll_loss(log, labels, reduction="sum"))
    tally.divergence += float(F.kl_div(log, truth, log_target=True, reduction="sum"))
