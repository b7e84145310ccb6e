"""A head over whole answers at every depth of a draft at once, and what it learns there: the training-time test of
EAGLE-3 (arXiv 2503.01840, Sec. 3.2).

At depth m the head has drafted m - 1 tokens by itself. Entry i then continues from its own output for the token before,
a^{m-1}_{i-1}, and sees the entries up to i - m + 1 as the target fed them, and of each depth r between them the one
entry i - m + r that led here. So no mask is built: keys of depth 1 are scored under a shifted triangle, of each other
depth one key an entry. What comes out is what `speculation.fed.session` computes for a chain behind every place of the
text (a test compares them).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from adapters_training.fed_head.runs import Runs
from adapters_training.packing import IGNORE
from speculation.fed.encoder import FeatureEncoder, rounded
from speculation.fed.head import FedHead, Projected
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


def unroll(head: FedHead, rows: Tensor, states: Tensor, depths: int, begin: int = 0) -> list[Tensor]:
    """Return the outputs [R, n - begin, width] at depths 1 to `depths` of R texts of n entries, from entry `begin` on.

    `rows` [R, n] are the rows of the embedding that stand for the tokens, `states` [R, n, width] what the target's
    features come to. Padding belongs on the right, where nobody looks. Outputs of depth m at entries below m - 1 mean
    nothing: there was nothing to draft from. Entries before `begin` - `depths` + 1 are projected only.
    """
    count = rows.shape[1]
    positions = torch.arange(count, device=rows.device).expand(rows.shape)
    # Chains that end at `begin` were drafted from here on.
    first = max(0, begin - depths + 1)
    fed = head.enter(rows, states, positions)
    rows, states, positions = rows[:, first:], states[:, first:], positions[:, first:]
    levels = [Projected(fed.queries[:, first:], fed.keys[:, first:], fed.values[:, first:])]
    outputs = [head.leave(states, _attend(fed, levels, first))]
    for _ in range(1, depths):
        states = _later(outputs[-1], 1)
        levels.append(head.enter(rows, states, positions))
        outputs.append(head.leave(states, _attend(fed, levels, first)))
    return [each[:, begin - first :] for each in outputs]


def _attend(first: Projected, levels: list[Projected], offset: int) -> Tensor:
    """Return what entries at the deepest level attend, [R, n - offset, heads, head_dim].

    `first` has all n entries as they were fed, `levels` those from `offset` on at every depth.
    """
    queries, depth = levels[-1].queries, len(levels)
    count, scale = first.keys.shape[1], queries.shape[-1] ** -0.5
    fed = torch.einsum("rihd,rjhd->rihj", queries, first.keys) * scale
    seen = torch.ones(count - offset, count, dtype=torch.bool, device=queries.device).tril(offset + 1 - depth)
    scores = [fed.masked_fill(~seen[:, None], -torch.inf)]
    own = [(level, depth - number) for number, level in enumerate(levels[1:], start=2)]
    scores += [(queries * _later(level.keys, back)).sum(-1, keepdim=True) * scale for level, back in own]
    weights = torch.cat(scores, dim=-1).softmax(-1)
    attended = torch.einsum("rihj,rjhd->rihd", weights[..., :count], first.values)
    for place, (level, back) in enumerate(own, start=count):
        attended = attended + weights[..., place : place + 1] * _later(level.values, back)
    return attended


def _later(entries: Tensor, back: int) -> Tensor:
    """Return entries [R, n, ...] such that entry i is what entry i - back was; zeros in front."""
    if not back:
        return entries
    padding = [0, 0] * (entries.ndim - 2)
    return F.pad(entries[:, :-back], [*padding, back, 0])
