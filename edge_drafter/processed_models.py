"""A draft model whose logits are processed as the target's are: penalised, masked, ranked by a way to sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from edge_drafter.protocols import DraftModel
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.logits_processors import Context, LogitsProcessors
from speculation.sampling import DraftSampler, Prefix
from speculation.wire import ROOT, Jpegs

State: TypeAlias = tuple[Context, Prefix]
"""What the tokens before a row lead to: all that its logits are processed by."""


class ProcessedModel:
    """A `DraftModel` with the target's repetition penalty, the answer's grammar and its way to sample.

    Where the answer has left the grammar logits are not masked: a draft there is rejected in any case. With a sampler
    whatever ranks its logits ranks samples; they are -inf for tokens that may not be drafted. Made anew for every
    answer.
    """

    def __init__(
        self,
        model: DraftModel,
        processors: LogitsProcessors,
        max_tokens: int,
        sampler: DraftSampler | None,
        digest: bytes,
    ) -> None:
        """`max_tokens` is the most that an answer may have; `digest` names the answer where `begin` takes it up.

        Without a `sampler` (None) logits are not ranked.
        """
        self._model = model
        self._processors = processors
        self._max_tokens = max_tokens
        self.sampler = sampler
        self._digest = digest
        self._root: State
        self._nodes: list[State] = []

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        context = self._processors.start(committed, self._max_tokens)
        self._root, self._nodes = (context, Prefix(len(committed), self._digest)), []
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
        if self.sampler is not None:
            self.sampler.forget_all_but([prefix for _, prefix in (self._root, *self._nodes)])
        return renamed

    def _next(self, state: State, token: int) -> State:
        context, prefix = state
        return self._processors.next(context, token), prefix.after(token)

    def _process(self, rows: Logits, states: Sequence[State]) -> Logits:
        """Return new rows: the model may keep its own for the time when one of these nodes is the root."""
        rows = self._processors.process(rows, [context for context, _ in states])
        if self.sampler is None or not states:
            return rows
        # A row in which nothing may be drafted, as a short list under a grammar may leave it, stays.
        return np.stack(
            [
                row if row.max() == -np.inf else self.sampler.rank(row, prefix)
                for row, (_, prefix) in zip(rows, states, strict=True)
            ]
        )
