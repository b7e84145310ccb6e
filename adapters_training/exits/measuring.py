"""What exits are worth: how often each one's token is the last layer's, on data that they were not trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.target import read
from speculation.exits import ExitHeads, measure_reliability
from speculation.vlm.forward import final_logits
from speculation.vlm.load import Vlm

FIGURES = ("agreement", "cross-entropy", "divergence")


@torch.no_grad()
def measure(vlm: Vlm, heads: ExitHeads, batches: Iterable[Batch], head_tokens: int) -> dict[str, Any]:
    """Measure every exit, as it is served, and set its reliability table.

    Returns by layer, with its adapter and without, how often an exit's first choice is the last layer's, and the mean
    cross-entropy to the data and divergence (nats) from the last layer; `tokens` is how many were judged. Raises
    ValueError without a token to judge.
    """
    confidences: dict[int, list[Tensor]] = {layer: [] for layer in heads.layers}
    agreed: dict[int, list[Tensor]] = {layer: [] for layer in heads.layers}
    sums = {layer: torch.zeros(2, len(FIGURES), dtype=torch.float64) for layer in heads.layers}
    tokens = 0
    for batch in batches:
        features = read(vlm, batch.to(vlm.device), heads.layers)
        for at in range(0, len(features.labels), head_tokens):
            part = slice(at, at + head_tokens)
            labels = features.labels[part]
            tokens += len(labels)
            truth = final_logits(vlm, features.last[part]).float().log_softmax(-1)
            for layer in heads.layers:
                hidden = features.hidden[layer][part]
                logs = [
                    each.float().log_softmax(-1) for each in (heads.logits(layer, hidden), final_logits(vlm, hidden))
                ]
                sums[layer] += torch.stack([_figures(log, truth, labels) for log in logs])
                confidence, token = logs[0].exp().max(-1)
                confidences[layer].append(confidence.cpu())
                agreed[layer].append((token == truth.argmax(-1)).cpu())
    if not tokens:
        raise ValueError("the held-out data hold no token to measure exits on")
    heads.set_reliability(
        {
            layer: measure_reliability(torch.cat(confidences[layer]).tolist(), torch.cat(agreed[layer]).tolist())
            for layer in heads.layers
        }
    )
    return {"tokens": tokens} | {
        f"{name}{which}": {layer: float(each[row, column]) / tokens for layer, each in sums.items()}
        for row, which in enumerate(("", " without adapter"))
        for column, name in enumerate(FIGURES)
    }


def _figures(log: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
    """Return the sums over tokens of FIGURES, for an exit's log-probabilities [n, vocabulary]."""
    agreed = (log.argmax(-1) == truth.argmax(-1)).sum()
    cross_entropy = F.nll_loss(log, labels, reduction="sum")
    divergence = F.kl_div(log, truth, log_target=True, reduction="sum")
    return torch.stack([agreed, cross_entropy, divergence]).double().cpu()
