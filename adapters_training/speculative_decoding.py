"""Greedy answers as mode `sd` decodes them, draft and target in one process, verification by verification."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from speculation.acceptance import Verdict
from speculation.logits_processors import Context, LogitsProcessors
from speculation.sampling import Greedy
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, final_logits, forward_layers, prefill, to_numpy
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT

Logits = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Verification:
    """One draft and what the target makes of it."""

    tokens: list[int]
    """The draft, which is a chain."""
    draft_logits: list[Logits]
    """What the draft model gave for each of them, processed as the target's logits are."""
    hidden: dict[int, Tensor]
    """What comes out of the layers that were asked for, for the root and each drafted token."""
    verdict: Verdict
    processors: LogitsProcessors
    root: Context
    """The place in the answer before its drafted tokens."""


class SpeculativeDecoder:
    """Decodes prompts with one row of the target and one session of the draft model."""

    def __init__(
        self, target: Vlm, draft: Vlm, gamma: int, max_tokens: int, capacity: int, layers: Collection[int] = ()
    ) -> None:
        """Raises ValueError for models that are no pair."""
        if draft.tokenizer_fingerprint != target.tokenizer_fingerprint:
            raise ValueError(f"{draft.folder} and {target.folder} have different tokenizers; they are no pair")
        self._target, self._gamma, self._max_tokens, self._layers = target, gamma, max_tokens, layers
        self._session = VlmSession(draft, capacity)
        self._cache = KVCache(target, 1, capacity)
        self._rule = Greedy()

    @torch.no_grad()
    def answer(self, text: str, image: bytes | None) -> Iterator[Verification]:
        """Yield the verifications of one answer. Raises CacheFull for what does not fit the capacity."""
        session, eos = self._session, set(self._target.eos)
        inputs = prepare(self._target, text, image)
        root = prefill(self._target, self._cache, 0, inputs)
        session.begin(text, image)
        processors = LogitsProcessors(self._target.penalty(inputs.ids))
        context = processors.start((), self._max_tokens)
        committed = 0
        while committed < self._max_tokens and root not in eos:
            found = self._verify(root, *self._propose(processors, context), processors, context)
            yield found
            path = found.verdict.path
            new = [*(found.tokens[node] for node in path), found.verdict.token]
            if eos & set(new):
                return
            committed += len(new)
            root = new[-1]
            for token in new:
                context = processors.next(context, token)
            session.commit(path, root)

    def _propose(self, processors: LogitsProcessors, context: Context) -> tuple[list[int], list[Logits]]:
        """Return the draft model's greedy continuation, `gamma` tokens or fewer where it ends the answer."""
        tokens, rows = list[int](), list[Logits]()
        logits = self._session.root_logits()
        while len(tokens) < self._gamma and not (tokens and tokens[-1] in self._target.eos):
            rows.append(processors.process(logits[None], [context])[0])
            tokens.append(int(np.argmax(rows[-1])))
            context = processors.next(context, tokens[-1])
            # The last one is fed as well, so that draft and target commit the same path.
            (logits,) = self._session.extend(tokens[-1:], [len(tokens) - 2])
        return tokens, rows

    def _verify(
        self, root: int, tokens: list[int], draft_logits: list[Logits], processors: LogitsProcessors, context: Context
    ) -> Verification:
        first, parents = self._cache.length[0], range(ROOT, len(tokens) - 1)
        chunk = draft_chunk(self._cache, 0, root, tokens, parents)
        hidden: dict[int, Tensor] = {}
        last = torch.empty(0)
        for output in forward_layers(self._target, self._cache, [chunk]):
            last = output.hidden[0]
            if output.layer in self._layers:
                hidden[output.layer] = last
        contexts = processors.along(context, tokens, parents)
        logits = processors.process(to_numpy(final_logits(self._target, last)), contexts)
        verdict = self._rule.judge(tokens, parents, logits)
        self._cache.keep(0, [first, *(first + 1 + node for node in verdict.path)])
        return Verification(tokens, draft_logits, hidden, verdict, processors, context)


def cut(tokens: Sequence[int], eos: Collection[int]) -> tuple[int, ...]:
    """Return the tokens up to the first end token, that included."""
    end = next((index for index, token in enumerate(tokens) if token in eos), len(tokens))
    return tuple(tokens[: end + 1])
