"""A draft model that draws as the target will: its logits carry the noise of their answer positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_drafter.drawn import DrawnModel
from edge_drafter.protocols import DraftModel
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.sampling import Rule, SamplingSettings, StepDraws, perturbed
from speculation.wire import ROOT


def sampled(model: DraftModel, settings: SamplingSettings, key: int, digest: bytes) -> DraftModel:
    """Return the model as it drafts for an answer that is drawn with `settings` and `key` and has this digest so far.

    Greedy needs no change, nor does the point-mass rule: it is for a draft that names its likeliest tokens.
    """
    if settings.greedy or settings.rule is Rule.POINT:
        return model
    return DrawnModel(model, settings, digest) if settings.rule.rejects else SampledModel(model, settings, key)


class SampledModel:
    """A `DraftModel` whose logits are perturbed as `speculation.sampling.perturbed` does it, each at its own position.

    So whatever ranks the logits of a draft model ranks draws: the likeliest token is what the draft itself would sample
    with this key, and its siblings come in the order in which the target, whose noise is the same, is likely to take
    them. Made anew for every answer.
    """

    def __init__(self, model: DraftModel, settings: SamplingSettings, key: int) -> None:
        self._model = model
        self._settings = settings
        self._draws = StepDraws(key)
        self._depths: list[int] = []
        """Of each node, from 1 for the token after the root."""

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = ()) -> None:
        """See `DraftModel.begin`."""
        self._model.begin(prompt, image, committed)
        self._draws = StepDraws(self._draws.key, len(committed))
        self._depths = []

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """See `DraftModel.root_logits`; perturbed, -inf for tokens that may not be drawn."""
        return perturbed(self._model.root_logits(stop), self._settings, self._draws)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """See `DraftModel.extend`; every row perturbed at its own answer position."""
        rows = self._model.extend(tokens, parents, stop)
        first = len(self._depths)
        for parent in parents:
            self._depths.append(1 if parent == ROOT else 1 + self._depths[parent])
        # New rows: the model may keep its own for the time when one of these nodes is the root.
        noisy = [
            perturbed(row, self._settings, self._draws.ahead(depth))
            for row, depth in zip(rows, self._depths[first:], strict=True)
        ]
        return np.stack(noisy) if noisy else rows

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """See `DraftModel.commit`."""
        renamed = self._model.commit(path, next_token)
        ahead = len(path) + 1
        kept = sorted((new, old) for old, new in renamed.items() if new != ROOT)
        self._depths = [self._depths[old] - ahead for _, old in kept]
        self._draws = self._draws.ahead(ahead)
        return renamed
