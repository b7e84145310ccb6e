"""What a head is worth: tokens a verification on answers of the target, beside those of a draft model.

The answers are the target's own, so its greedy choice after every entry is the entry that follows. A chain drafted
behind a place is right as far as its tokens are those; up to there the drafter has been fed the answer's own tokens.
So one unrolled pass knows how every chain behind every place of an answer would have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adapters_training.fed_head.runs import Runs, gather
from adapters_training.fed_head.unroll import depth_losses, unroll
from adapters_training.frozen_target.batches import Batch
from adapters_training.packing import IGNORE
from speculation.fed.encoder import FeatureEncoder, rounded
from speculation.fed.head import FedHead
from speculation.vlm.forward import final_logits
from speculation.vlm.model import Vlm

Hits = npt.NDArray[np.bool_]


@dataclass
class Tally:
    """Counts what becomes of one drafter's chains over many answers, `gamma` tokens a draft."""

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
    def figures(self) -> dict[str, Any]:
        """What results.json has of them."""
        return {
            "tokens a verification": self.tau,
            "accepted of the drafted": self.accepted / self.drafted if self.drafted else 0.0,
            "right at depth": [hits / count if count else 0.0 for hits, count in self.right],
        }


Drafter = Callable[[Batch, Runs], Tensor]
"""Returns where the tokens drafted at each depth are right, bool [depths, R, n] as `Runs.labels`."""


@torch.no_grad()
def measure(
    vlm: Vlm,
    drafters: Mapping[str, Drafter],
    batches: Iterable[Batch],
    gamma: int,
    layers: Sequence[int] = (),
    prompt_tokens: int = 1,
) -> dict[str, Any]:
    """Return what drafters are worth on the answers of these batches, by name; `gamma` tokens are drafted at a time.

    `layers` and `prompt_tokens` are what `gather` gives the drafters. `own` is the share of the answers' tokens that
    the target itself would have chosen: where that is near 1, tokens a verification are exact. Raises ValueError
    without an answer to measure on.
    """
    tallies = {name: Tally(gamma) for name in drafters}
    own = tokens = 0
    for batch in batches:
        batch = batch.to(vlm.device)
        runs = gather(vlm, batch, layers, prompt_tokens)
        if runs is None:
            continue
        labelled = runs.labels != IGNORE
        own += int((final_logits(vlm, runs.last[labelled]).argmax(-1) == runs.labels[labelled]).sum())
        tokens += int(labelled.sum())
        for name, drafter in drafters.items():
            right = drafter(batch, runs).cpu()
            for row, chosen in enumerate(labelled.cpu()):
                tallies[name].add([each.numpy() for each in right[:, row, chosen]])
    if not tokens:
        raise ValueError("the held-out data hold no answer to measure on")
    figures = {name: tally.figures for name, tally in tallies.items()}
    return {"tokens": tokens, "own": own / tokens, "gamma": gamma, **figures}


class HeadDrafter:
    """A fed head as it is served; it keeps how near it is to the target's distribution, too."""

    def __init__(self, vlm: Vlm, encoder: FeatureEncoder, head: FedHead, depths: int, head_tokens: int) -> None:
        self._vlm, self._encoder, self._head = vlm, encoder, head
        self._depths, self._head_tokens = depths, head_tokens
        self._losses = torch.zeros(depths, 2, dtype=torch.float64)
        self._counts = torch.zeros(depths, dtype=torch.float64)

    def __call__(self, batch: Batch, runs: Runs) -> Tensor:
        """Return where drafted tokens are right, see `Drafter`."""
        head, depths = self._head, self._depths
        labelled = runs.labels != IGNORE
        self._losses += depth_losses(self._vlm, self._encoder, head, runs, depths, self._head_tokens).double().cpu()
        self._counts += torch.tensor([float(labelled[:, depth:].sum()) for depth in range(depths)])
        states, ids = head.up(rounded(self._encoder(runs.hidden))), head.get_buffer("ids")
        outputs = unroll(head, head.rows(runs.tokens), states, depths)
        return torch.stack([ids[head.logits(each).argmax(-1)] == runs.labels for each in outputs])

    @property
    def figures(self) -> dict[str, list[float]]:
        """By depth the mean cross-entropy to the target, nats, and how often the first choice is the target's."""
        means = (self._losses / self._counts.clamp(min=1.0)[:, None]).T.tolist()
        return {"cross-entropy": means[0], "agreement": means[1]}


class ModelDrafter:
    """A draft model that is given the text so far: what is right does not depend on the depth."""

    def __init__(self, vlm: Vlm, draft: Vlm, depths: int, prompt_tokens: int = 1) -> None:
        """Raises ValueError for a draft model that does not read what the target reads."""
        if draft.tokenizer_fingerprint != vlm.tokenizer_fingerprint or draft.sees_images != vlm.sees_images:
            raise ValueError(
                f"--draft {draft.folder} does not read what the target reads: take a draft model of its family"
            )
        self._draft, self._depths, self._prompt_tokens = draft, depths, prompt_tokens

    def __call__(self, batch: Batch, runs: Runs) -> Tensor:
        """Return where drafted tokens are right, see `Drafter`."""
        own = gather(self._draft, batch, (), self._prompt_tokens)
        assert own is not None, "the same labels as the target's"
        right = final_logits(self._draft, own.last).argmax(-1) == own.labels
        return right[None].expand(self._depths, -1, -1)
