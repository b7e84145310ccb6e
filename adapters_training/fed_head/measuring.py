"""What a head is worth: tokens a verification on answers of the target, beside those of a draft model.

The answers are the target's own, so its greedy choice after every entry is the entry that follows. A chain drafted
behind a place is right as far as its tokens are those; up to there the drafter has been fed the answer's own tokens.
So one unrolled pass knows how every chain behind every place of an answer would have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adapters_training.fed_head.losses import depth_losses
from adapters_training.fed_head.runs import Runs, gather
from adapters_training.fed_head.unroll import unroll
from adapters_training.frozen_target.batches import Batch
from adapters_training.packing import IGNORE
from speculation.fed.encoder import FeatureEncoder, rounded
from speculation.fed.head import FedHead
from speculation.vlm.forward import final_logits
from speculation.vlm.load import Vlm

Hits = npt.NDArray[np.bool_]


@dataclass
class Tally:
    """Of the chains of one drafter over many answers, `gamma` tokens a draft."""

    gamma: int
    tokens: int = 0
    verifications: int = 0
    drafted: int = 0
    accepted: int = 0
    right: list[list[int]] = field(default_factory=list)
    """By depth: [drafted tokens that were right, places] behind every place, whatever came before."""

    def add(self, hits: Sequence[Hits]) -> None:
        """Enter one answer of n tokens: `hits[m][i]` is whether the token drafted at depth m + 1 for its token i is
        right; for depth m + 1 the chain begins behind token i - m - 1, where token -1 is the prompt's end.

        `hits` has at least gamma depths.
        """
        count, at = len(hits[0]), 0
        while at < count:
            room = min(self.gamma, count - at - 1)
            accepted = 0
            while accepted < room and hits[accepted][at + accepted]:
                accepted += 1
            self.verifications += 1
            self.tokens += accepted + 1
            self.drafted += room
            self.accepted += accepted
            at += accepted + 1
        while len(self.right) < len(hits):
            self.right.append([0, 0])
        for depth, each in enumerate(hits):
            self.right[depth][0] += int(each[depth:].sum())
            self.right[depth][1] += len(each[depth:])

    @property
    def tau(self) -> float:
        """Tokens a verification, as mode `sd` would commit them; 0 before the first."""
        return self.tokens / self.verifications if self.verifications else 0.0

    @property
    def shares(self) -> list[float]:
        """How many of the tokens drafted at each depth are right."""
        return [hits / count if count else 0.0 for hits, count in self.right]


@torch.no_grad()
def measure(
    vlm: Vlm,
    encoder: FeatureEncoder,
    head: FedHead,
    batches: Iterable[Batch],
    gamma: int,
    draft: Vlm | None = None,
    head_tokens: int = 512,
    depths: int = 0,
) -> dict[str, Any]:
    """Return what the head, as it is served, and the draft model are worth on the answers of these batches.

    `gamma` tokens are drafted for a verification; shares by depth go to `depths` where that is more. `agreement` is how
    often the head's first choice at each depth is the target's, and `cross-entropy` that to the target's distribution,
    nats a token. `own` is the share of the answers' tokens that the target itself would have chosen: where that is near
    1, tokens a verification are exact. Raises ValueError without an answer to measure on, and for a draft model that
    does not read what the target reads.
    """
    shape, fed, other, own, tokens = head.config, Tally(gamma), Tally(gamma), 0, 0
    depths = max(gamma, depths)
    losses = torch.zeros(depths, 2, dtype=torch.float64)
    counts = torch.zeros(depths, dtype=torch.float64)
    for batch in batches:
        batch = batch.to(vlm.device)
        runs = gather(vlm, batch, shape.layers, shape.prompt_tokens)
        if runs is None:
            continue
        states = head.up(rounded(encoder(runs.hidden)))
        ids = head.get_buffer("ids")
        found = [ids[head.logits(each).argmax(-1)] for each in unroll(head, head.rows(runs.tokens), states, depths)]
        right = torch.stack([each == runs.labels for each in found])
        _enter(fed, right, runs)
        chosen = runs.labels != IGNORE
        losses += depth_losses(vlm, encoder, head, runs, depths, head_tokens).double().cpu()
        counts += torch.tensor([float(chosen[:, depth:].sum()) for depth in range(depths)], dtype=torch.float64)
        own += int(_own(vlm, runs).sum())
        tokens += int(chosen.sum())
        if draft is not None:
            _enter(other, _drafted(draft, batch, vlm, shape.prompt_tokens)[None].expand(depths, -1, -1), runs)
    if not tokens:
        raise ValueError("the held-out data hold no answer to measure a fed head on")
    means = (losses / counts.clamp(min=1.0)[:, None]).T.tolist()
    figures = _figures(fed) | {"cross-entropy": means[0], "agreement": means[1]}
    results = {"tokens": tokens, "own": own / tokens, "gamma": gamma, "head": figures}
    return results if draft is None else results | {"draft": _figures(other)}


@torch.no_grad()
def measure_draft(vlm: Vlm, draft: Vlm, batches: Iterable[Batch], gamma: int) -> dict[str, Any]:
    """Return what a draft model is worth on the answers of these batches, as `measure` does beside a head.

    `agreement` is how often its first choice behind the answer's own tokens is the answer's next one. Raises ValueError
    as `measure`.
    """
    tally, own, tokens, agreed = Tally(gamma), 0, 0, 0
    for batch in batches:
        batch = batch.to(vlm.device)
        runs = gather(vlm, batch, (), 1)
        if runs is None:
            continue
        right = _drafted(draft, batch, vlm, 1)
        _enter(tally, right[None].expand(gamma, -1, -1), runs)
        own += int(_own(vlm, runs).sum())
        agreed += int(right[runs.labels != IGNORE].sum())
        tokens += int((runs.labels != IGNORE).sum())
    if not tokens:
        raise ValueError("the held-out data hold no answer to measure a draft model on")
    figures = _figures(tally) | {"agreement": agreed / tokens}
    return {"tokens": tokens, "own": own / tokens, "gamma": gamma, "draft": figures}


def _own(vlm: Vlm, runs: Runs) -> Tensor:
    """Return which of the answers' tokens the target itself chooses, bool [n] over the labelled entries."""
    chosen = runs.labels != IGNORE
    return final_logits(vlm, runs.last[chosen]).argmax(-1) == runs.labels[chosen]


def _drafted(draft: Vlm, batch: Batch, vlm: Vlm, prompt_tokens: int) -> Tensor:
    """Return where a draft model that was given the text so far is right, bool [R, n] as `Runs.labels`."""
    if draft.tokenizer_fingerprint != vlm.tokenizer_fingerprint or draft.sees_images != vlm.sees_images:
        raise ValueError(
            f"--draft {draft.folder} does not read what the target reads: take a draft model of its family"
        )
    runs = gather(draft, batch, (), prompt_tokens)
    assert runs is not None, "the same labels as the target's"
    return final_logits(draft, runs.last).argmax(-1) == runs.labels


def _enter(tally: Tally, right: Tensor, runs: Runs) -> None:
    for row, labelled in enumerate((runs.labels != IGNORE).cpu()):
        places = labelled.nonzero()[:, 0]
        tally.add([each.numpy() for each in right[:, row].cpu()[:, places]])


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "tokens a verification": tally.tau,
        "accepted of the drafted": tally.accepted / tally.drafted if tally.drafted else 0.0,
        "right at depth": tally.shares,
    }
