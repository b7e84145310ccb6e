"""SelfDraft: a draft model beside the target, for steps that no edge drafts for (SpecEdge's baseline `server_only`).

All steps of a batch draft in the same forwards, one token a step and forward. A row of the cache holds the prompt and,
as a chain, whatever tokens were fed behind it; what the answer went another way than is cut off before the next draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cloud_verifier.config import StartError
from cloud_verifier.engine import check_room
from cloud_verifier.work import DraftWish
from speculation.sampling import Prefix
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, Logits, forward, prefill
from speculation.vlm.inspect import inspect_folder
from speculation.vlm.load import Vlm
from speculation.vlm.processing import Inputs, prepare
from speculation.wire import MAX_DRAFT_TOKENS


def check_pair(target: Path, draft: Path) -> None:
    """Raise StartError where a draft model has another tokenizer than the target; no weights are read."""
    one, other = inspect_folder(target), inspect_folder(draft)
    if (one.tokenizer, one.vocabulary) != (other.tokenizer, other.vocabulary):
        raise StartError(
            f"--draft-model {draft}: its tokenizer ({other.vocabulary} tokens, fingerprint {other.tokenizer}) is not "
            f"the target's ({one.vocabulary}, {one.tokenizer}): take two models of one family"
        )


class SelfDraft:
    """One draft model and `rows` rows of `capacity` cache slots; `ends` end a draft. See `work.DraftEngine`."""

    def __init__(
        self, vlm: Vlm, rows: int, capacity: int, ends: Sequence[int], max_draft: int = MAX_DRAFT_TOKENS
    ) -> None:
        self._vlm = vlm
        self._cache = KVCache(vlm, rows, capacity)
        self._ends = frozenset(ends)
        self._max_draft = max_draft
        self._roots = [0] * rows
        self._prompts = [0] * rows
        self._fed: list[list[int]] = [[] for _ in range(rows)]

    @property
    def name(self) -> str:
        """The draft model's name."""
        return self._vlm.name

    def prepare(self, prompt: str, jpeg: bytes) -> Inputs:
        """See `DraftEngine.prepare`."""
        return prepare(self._vlm, prompt, jpeg)

    def prefill(self, row: int, inputs: Inputs, max_tokens: int) -> None:
        """See `DraftEngine.prefill`. Answer tokens follow with the first draft."""
        check_room("the draft model", len(inputs.ids), max_tokens, self._max_draft, self._cache.capacity)
        self._roots[row] = prefill(self._vlm, self._cache, row, inputs)
        self._prompts[row] = self._cache.length[row]
        self._fed[row] = []

    def draft(self, wishes: Sequence[DraftWish]) -> Iterator[Mapping[int, tuple[int, ...]]]:
        """See `DraftEngine.draft`; tokens are the first that the draft half of each step's scheme ranks."""
        drafts: dict[int, tuple[int, ...]] = {}
        feeds = {wish.row: self._unfed(wish) for wish in wishes}
        wanted = {wish.row: wish for wish in wishes}
        samplers = {wish.row: wish.sampling.sampler(wish.draws.key) for wish in wishes}
        prefixes = {wish.row: Prefix(wish.draws.position, wish.digest) for wish in wishes}
        while feeds:
            for row, logits in self._feed(feeds).items():
                sampler = samplers[row]
                token = int(np.argmax(logits if sampler is None else sampler.rank(logits, prefixes[row])))
                drafts[row] = (*drafts.get(row, ()), token)
                prefixes[row] = prefixes[row].after(token)
                feeds[row] = [token]
                if len(drafts[row]) >= wanted[row].count or token in self._ends:
                    del feeds[row]
            yield drafts

    def _unfed(self, wish: DraftWish) -> list[int]:
        """Cut the row back to where it agrees with the answer; return what must be fed, the last token at least."""
        row, known = wish.row, self._fed[wish.row]
        tokens = [self._roots[row], *wish.answer]
        same = 0
        while same < min(len(known), len(tokens) - 1) and known[same] == tokens[same]:
            same += 1
        self._cache.truncate(row, self._prompts[row] + same)
        del known[same:]
        return tokens[same:]

    def _feed(self, feeds: Mapping[int, Sequence[int]]) -> dict[int, Logits]:
        """Feed tokens behind each row's chain; return the logits [vocabulary] after the last of them."""
        chunks = [Chunk(row, tokens, self._cache.chain(row, len(tokens))) for row, tokens in feeds.items()]
        following = {}
        for chunk, logits in zip(chunks, forward(self._vlm, self._cache, chunks), strict=True):
            self._cache.keep(chunk.row, range(self._cache.length[chunk.row], self._cache.used[chunk.row]))
            self._fed[chunk.row] += chunk.tokens
            following[chunk.row] = logits[-1]
        return following
