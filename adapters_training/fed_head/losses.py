"""What a head learns: the target's own distribution, at every depth of a draft."""

from __future__ import annotations

import torch
from torch import Tensor

from adapters_training.fed_head.runs import Runs
from adapters_training.fed_head.unroll import unroll
from adapters_training.packing import IGNORE
from speculation.fed.encoder import FeatureEncoder, rounded
from speculation.fed.head import FedHead
from speculation.vlm.forward import final_logits
from speculation.vlm.model import Vlm


def depth_losses(vlm: Vlm, encoder: FeatureEncoder, head: FedHead, runs: Runs, depths: int, head_tokens: int) -> Tensor:
    """Return for each depth the cross-entropy to the target's distribution, and how often the first choice is the
    target's, both summed over the labelled entries [depths, 2].

    Of the target's probabilities those of the short list count, as they are: where the target goes on with another
    token, there is nothing to learn. Depth m of an answer's first m - 1 tokens would begin inside the prompt: it is
    learned there too, as far as the run reaches back.
    """
    states = head.up(rounded(encoder(runs.hidden)))
    places = (runs.labels != IGNORE).nonzero()
    begin = int(places[:, 1].min())
    outputs = unroll(head, head.rows(runs.tokens), states, depths, begin)
    truths, choices = _truths(vlm, runs.last[places[:, 0], places[:, 1]], head, head_tokens)
    losses = []
    for depth, each in enumerate(outputs):
        learned = places[:, 1] >= depth
        chosen = places[learned]
        log = head.logits(each[chosen[:, 0], chosen[:, 1] - begin]).log_softmax(-1)
        hits = head.get_buffer("ids")[log.detach().argmax(-1)] == choices[learned]
        losses.append(torch.stack([-(truths[learned] * log).sum(), hits.sum().to(log.dtype)]))
    return torch.stack(losses)


@torch.no_grad()
def _truths(vlm: Vlm, last: Tensor, head: FedHead, head_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the target's probabilities of the short list [n, list], float32, and its first choices [n]."""
    ids, parts = head.get_buffer("ids"), []
    for at in range(0, len(last), head_tokens):
        logits = final_logits(vlm, last[at : at + head_tokens].to(vlm.dtype)).float()
        parts.append((logits.softmax(-1)[:, ids], logits.argmax(-1)))
    return torch.cat([part for part, _ in parts]), torch.cat([choice for _, choice in parts])
