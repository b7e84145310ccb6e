"""A draft model that samples as its answer's scheme does: whatever ranks its logits ranks samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_drafter.protocols import DraftModel
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.sampling import DraftSampler, Prefix, SamplingScheme
from speculation.wire import ROOT, Jpegs


def sampled(model: DraftModel, scheme: SamplingScheme, key: int, digest: bytes) -> DraftModel:
    """Return the model as it drafts for an answer that is sampled with `scheme` and `key` and has this digest so far.

    The model itself where the scheme drafts its likeliest tokens.
    """
    sampler = scheme.sampler(key)
    return model if sampler is None else SampledModel(model, sampler, digest)


class SampledModel:
    """A `DraftModel` whose logits are ranked by the draft half of a scheme, each row behind its own prefix.

    Made anew for every answer.
    """

    def __init__(self, model: DraftModel, sampler: DraftSampler, digest: bytes) -> None:
        """`digest` names the answer as it stands where `begin` takes it up."""
        self._model = model
        self.sampler = sampler
        self._digest = digest
        self._root = Prefix(0, digest)
        self._nodes: list[Prefix] = []
        """The prefixes that end with each node."""

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        """See `DraftModel.begin`."""
        self._root, self._nodes = Prefix(len(committed), self._digest), []
        self._model.begin(prompt, image, committed, stop)

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """See `DraftModel.root_logits`; ranked, -inf for tokens that may not be drafted."""
        return self.sampler.rank(self._model.root_logits(stop), self._root)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """See `DraftModel.extend`; ranked, -inf for tokens that may not be drafted."""
        rows = self._model.extend(tokens, parents, stop)
        first = len(self._nodes)
        for token, parent in zip(tokens, parents, strict=True):
            self._nodes.append((self._root if parent == ROOT else self._nodes[parent]).after(token))
        # New rows: the model may keep its own for the time when one of these nodes is the root.
        ranked = [self.sampler.rank(row, prefix) for row, prefix in zip(rows, self._nodes[first:], strict=True)]
        return np.stack(ranked) if ranked else rows

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """See `DraftModel.commit`."""
        renamed = self._model.commit(path, next_token)
        self._root = (self._nodes[path[-1]] if path else self._root).after(next_token)
        kept = sorted((new, old) for old, new in renamed.items() if new != ROOT)
        self._nodes = [self._nodes[old] for _, old in kept]
        self.sampler.forget_all_but((self._root, *self._nodes))
        return renamed
