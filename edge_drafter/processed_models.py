"""Draft models whose logits are processed as the target's are: penalised, masked, ranked by a way to sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from edge_drafter.protocols import DraftModel
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.logits_processors import Context, LogitsProcessors
from speculation.sampling import DraftSampler, Prefix
from speculation.wire import ROOT, Jpegs

S = TypeVar("S")


class ProcessedModel(ABC, Generic[S]):
    """A `DraftModel` whose rows of logits are processed, each by the state that the tokens before it lead to.

    Made anew for every answer.
    """

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._root: S
        self._nodes: list[S] = []

    @abstractmethod
    def _start(self, committed: Sequence[int]) -> S:
        """Return the state behind the answer so far."""

    @abstractmethod
    def _next(self, state: S, token: int) -> S:
        """Return the state behind one more token."""

    @abstractmethod
    def _process(self, rows: Logits, states: Sequence[S]) -> Logits:
        """Return new rows: the model may keep its own for the time when one of these nodes is the root."""

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        self._root, self._nodes = self._start(committed), []
        self._model.begin(prompt, image, committed, stop)

    def root_logits(self, stop: Stop | None = None) -> Logits:
        row: Logits = self._process(self._model.root_logits(stop)[None], [self._root])[0]
        return row

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        rows = self._model.extend(tokens, parents, stop)
        first = len(self._nodes)
        for token, parent in zip(tokens, parents, strict=True):
            self._nodes.append(self._next(self._root if parent == ROOT else self._nodes[parent], token))
        return self._process(rows, self._nodes[first:])

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        renamed = self._model.commit(path, next_token)
        self._root = self._next(self._nodes[path[-1]] if path else self._root, next_token)
        kept = sorted((new, old) for old, new in renamed.items() if new != ROOT)
        self._nodes = [self._nodes[old] for _, old in kept]
        return renamed


class AlignedModel(ProcessedModel[Context]):
    """A draft model with the target's repetition penalty and the answer's grammar, see `LogitsProcessors`.

    Where the answer has left the grammar logits are not masked: a draft there is rejected in any case.
    """

    def __init__(self, model: DraftModel, processors: LogitsProcessors, max_tokens: int) -> None:
        """`max_tokens` is the most that an answer may have."""
        super().__init__(model)
        self._processors = processors
        self._max_tokens = max_tokens

    def _start(self, committed: Sequence[int]) -> Context:
        return self._processors.start(committed, self._max_tokens)

    def _next(self, state: Context, token: int) -> Context:
        return self._processors.next(state, token)

    def _process(self, rows: Logits, states: Sequence[Context]) -> Logits:
        return self._processors.process(rows, states)


class SampledModel(ProcessedModel[Prefix]):
    """A draft model that samples as its answer's scheme does: whatever ranks its logits ranks samples.

    They are -inf for tokens that may not be drafted.
    """

    def __init__(self, model: DraftModel, sampler: DraftSampler, digest: bytes) -> None:
        """`digest` names the answer as it stands where `begin` takes it up."""
        super().__init__(model)
        self.sampler = sampler
        self._digest = digest

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        renamed = super().commit(path, next_token)
        self.sampler.forget_all_but((self._root, *self._nodes))
        return renamed

    def _start(self, committed: Sequence[int]) -> Prefix:
        return Prefix(len(committed), self._digest)

    def _next(self, state: Prefix, token: int) -> Prefix:
        return state.after(token)

    def _process(self, rows: Logits, states: Sequence[Prefix]) -> Logits:
        # A row in which nothing may be drafted, as a short list under a grammar may leave it, stays.
        ranked = [
            row if row.max() == -np.inf else self.sampler.rank(row, prefix)
            for row, prefix in zip(rows, states, strict=True)
        ]
        return np.stack(ranked) if ranked else rows
