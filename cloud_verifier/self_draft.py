"""SelfDraft: a draft model beside the target, for steps that no edge drafts for (SpecEdge's baseline `server_sd`).

All steps of a batch draft in the same forwards, one token a step and forward. A row of the cache holds the prompt and,
as a chain, whatever tokens were fed behind it; what the answer went another way than is cut off before the next draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cloud_verifier.config import StartError
from cloud_verifier.engine import check_room
from cloud_verifier.work import Row
from speculation.cancellation import Stop
from speculation.sampling import Prefix
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, Logits, forward, prefill
from speculation.vlm.inputs import Inputs, prepare
from speculation.vlm.inspect import inspect_folder
from speculation.vlm.load import Vlm
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
        self,
        vlm: Vlm,
        rows: int,
        capacity: int,
        ends: Sequence[int],
        max_draft: int = MAX_DRAFT_TOKENS,
        blocks: int | None = None,
    ) -> None:
        """`blocks` of the cache for all rows together; None: what all can fill."""
        self._vlm = vlm
        self._cache = KVCache(vlm, rows, capacity, blocks)
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

    def size(self, inputs: Inputs) -> int:
        """See `DraftEngine.size`."""
        return len(inputs.ids)

    def release(self, index: int) -> None:
        """See `DraftEngine.release`."""
        self._cache.clear(index)
        self._fed[index] = []

    def prefill(self, index: int, inputs: Inputs, max_tokens: int, stop: Stop | None = None) -> None:
        """See `DraftEngine.prefill`. Answer tokens follow with the first draft."""
        check_room("the draft model", len(inputs.ids), max_tokens, self._max_draft, self._cache.capacity)
        self._roots[index] = prefill(self._vlm, self._cache, index, inputs, stop)
        self._prompts[index] = self._cache.length[index]
        self._fed[index] = []

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, tuple[int, ...]]]:
        """See `DraftEngine.draft`; tokens are the first that the draft half of each step's scheme ranks."""
        drafts: dict[int, tuple[int, ...]] = {}
        feeds = {row.index: self._unfed(row) for row in rows}
        asked = {row.index: row for row in rows}
        samplers = {row.index: row.sampling.sampler(row.draws.key) for row in rows}
        prefixes = {row.index: Prefix(row.draws.position, row.digest) for row in rows}
        while feeds:
            for index, logits in self._feed(feeds).items():
                sampler = samplers[index]
                token = int(np.argmax(logits if sampler is None else sampler.rank(logits, prefixes[index])))
                drafts[index] = (*drafts.get(index, ()), token)
                prefixes[index] = prefixes[index].after(token)
                feeds[index] = [token]
                if len(drafts[index]) >= asked[index].self_draft or token in self._ends:
                    del feeds[index]
            yield drafts

    def _unfed(self, row: Row) -> list[int]:
        """Cut the row back to where it agrees with the answer; return what must be fed, the last token at least."""
        index, known = row.index, self._fed[row.index]
        tokens = [self._roots[index], *row.answer]
        same = 0
        while same < min(len(known), len(tokens) - 1) and known[same] == tokens[same]:
            same += 1
        self._cache.truncate(index, self._prompts[index] + same)
        del known[same:]
        return tokens[same:]

    def _feed(self, feeds: Mapping[int, Sequence[int]]) -> dict[int, Logits]:
        """Feed tokens behind each row's chain; return the logits [vocabulary] after the last of them."""
        chunks = [Chunk(index, tokens, self._cache.chain(index, len(tokens))) for index, tokens in feeds.items()]
        following = {}
        for chunk, logits in zip(chunks, forward(self._vlm, self._cache, chunks), strict=True):
            self._cache.keep(chunk.row, range(self._cache.length[chunk.row], self._cache.used[chunk.row]))
            self._fed[chunk.row] += chunk.tokens
            following[chunk.row] = logits[-1]
        return following
