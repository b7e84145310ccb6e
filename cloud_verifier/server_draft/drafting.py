"""Drafts with a model beside the target, for steps that no edge drafts for (SpecEdge's baseline `server_sd`).

All steps of a batch draft in the same forwards, one level of each step's tree a forward. A row of the cache holds the
prompt, as its prefix the tokens of the answer that were fed, and as scratch those of the latest draft; where the answer
went along them they join the prefix before the next draft, and the rest is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.config import StartError
from cloud_verifier.engine import Prefill, ReadsPrompts, check_room
from cloud_verifier.interfaces import Row
from cloud_verifier.server_draft.tree_growth import Growth, Proposals
from cloud_verifier.tree import Tree
from speculation.cancellation import Abandoned, Stop
from speculation.logits_processors import LogitsProcessors, RepetitionPenalty
from speculation.sampling import Prefix
from speculation.vlm.folder import find_model, read_config, tokenizer_fingerprint
from speculation.vlm.forward import Chunk, final_logits, forward_layers, to_numpy
from speculation.vlm.inputs import Inputs
from speculation.vlm.model import Vlm
from speculation.vlm.processing import load_processor
from speculation.vlm.sampling import process_rows
from speculation.vlm.session import MOST_PENDING
from speculation.vlm.speed import synchronise
from speculation.wire import MAX_DRAFT_TOKENS, ROOT


def check_pair(target: Path, draft: Path) -> None:
    """Raise StartError where a draft model has another tokenizer than the target; no weights are read."""
    folders = find_model(target), find_model(draft)
    one, other = (load_processor(folder, read_config(folder)).tokenizer for folder in folders)
    if tokenizer_fingerprint(one) != tokenizer_fingerprint(other):
        raise StartError(
            f"--draft-model {draft}: its tokenizer ({len(other)} tokens) is not the target's ({len(one)}): take two "
            "models of one family"
        )


class _Draft:
    """One row's draft under way, or its latest one."""

    def __init__(self, row: Row, unfed: Sequence[int], ends: frozenset[int], penalty: RepetitionPenalty | None) -> None:
        """`unfed`: the answer's tokens that the model was not fed yet, the last one at least. `penalty`: the target's,
        behind this prompt."""
        self.index = row.index
        self.unfed = unfed
        self.growth = Growth(row.self_draft, row.self_depth, ends)
        self.sampler = row.sampling.sampler(row.draws.key)
        self.prefixes = {ROOT: Prefix(row.draws.position, row.digest)}
        self.processors = LogitsProcessors(penalty, None if row.constraint is None else row.constraint.automaton)
        self.contexts = {ROOT: row.context}
        self.slots: dict[int, int] = {}
        """Fed nodes -> their slots in the cache."""

    def proposals(self, logits: Tensor) -> list[Proposals]:
        """Return what may follow each leaf, of their logits [leaves, vocabulary]: what the draft half of the step's
        scheme ranks first."""
        values = logits if logits.dtype == torch.float64 else logits.float()
        if self.processors:
            values = process_rows(values, self.processors, [self.contexts[leaf] for leaf in self.growth.leaves])
        if self.sampler is not None:
            rows = zip(to_numpy(values), self.growth.leaves, strict=True)
            values = torch.from_numpy(np.stack([self.sampler.rank(row, self.prefixes[leaf]) for row, leaf in rows]))
        best = values.topk(min(self.growth.width, values.shape[-1]))
        logs = (best.values - values.logsumexp(-1, keepdim=True)).tolist()
        return [list(zip(*each, strict=True)) for each in zip(best.indices.tolist(), logs, strict=True)]

    def grow(self, logits: Tensor) -> None:
        """Take the logits of a forward over the leaves."""
        self.growth.grow(self.proposals(logits))
        for leaf in self.growth.leaves:
            node = self.growth[leaf]
            if self.sampler is not None:
                self.prefixes[leaf] = self.prefixes[node.parent].after(node.token)
            if self.processors:
                self.contexts[leaf] = self.processors.next(self.contexts[node.parent], node.token)

    def path(self, tokens: Sequence[int]) -> list[int]:
        """Return the slots of the fed nodes along these tokens, as far as there are any."""
        below = {(self.growth[node].parent, self.growth[node].token): node for node in self.slots}
        node, found = ROOT, list[int]()
        for token in tokens:
            child = below.get((node, token))
            if child is None:
                break
            node = child
            found.append(self.slots[node])
        return found


class ServerDraft(ReadsPrompts):
    """One draft model and `rows` rows of `capacity` cache slots; `ends` end a draft. It is a
    `cloud_verifier.interfaces.DraftEngine`."""

    def __init__(
        self,
        vlm: Vlm,
        rows: int,
        capacity: int,
        ends: Sequence[int],
        max_draft: int = MAX_DRAFT_TOKENS,
        blocks: int | None = None,
        repetition_penalty: float = 1.0,
    ) -> None:
        """`blocks` of the cache for all rows together; None: what all can fill. `repetition_penalty`: the target's, so
        that drafts are made as it answers; the draft model's own is none of its drafts' business."""
        super().__init__(vlm, rows, capacity, blocks)
        self._ends = frozenset(ends)
        self._max_draft = max_draft
        self._prompts = [0] * rows
        self._repetition_penalty = repetition_penalty
        self._fed: list[list[int]] = [[] for _ in range(rows)]
        self._latest: list[_Draft | None] = [None] * rows

    @property
    def name(self) -> str:
        """The draft model's name."""
        return self._vlm.name

    def begin(self, index: int, inputs: Inputs, max_tokens: int) -> int:
        """See `DraftEngine.begin`. Answer tokens follow with the first draft."""
        check_room("the draft model", len(inputs.ids), max_tokens, self._max_draft, self._cache.capacity)
        self._prefills[index] = prefill = Prefill.of(self._vlm, inputs)
        self._roots[index], self._prompts[index] = int(prefill.ids[-1]), len(prefill.ids) - 1
        self._penalties[index] = RepetitionPenalty.of(self._repetition_penalty, inputs.ids, self._vlm.vocabulary)
        self._fed[index], self._latest[index] = [], None
        return self._prompts[index] - self._cache.open(index, prefill.words, inputs.delta)

    def feed(self, index: int, tokens: int, stop: Stop | None = None) -> None:
        """See `DraftEngine.feed`."""
        prefill, last = self._prefills[index], self._vlm.num_layers - 1
        chunk = prefill.chunk(index, self._cache.length[index], tokens)
        for output in forward_layers(self._vlm, self._cache, [chunk]):
            if stop is not None and output.layer < last and stop():
                raise Abandoned
        # No logits are read: without this its time would be that of launching it.
        synchronise(*self._vlm.devices)

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        """See `DraftEngine.draft`; tokens are ranked by the draft half of each step's scheme."""
        drafts = [_Draft(row, self._unfed(row), self._ends, self._penalties[row.index]) for row in rows]
        for draft in drafts:
            self._latest[draft.index] = draft
            self._feed_long(draft)
        growing = drafts
        while growing:
            self._forward(growing)
            growing = [draft for draft in growing if draft.growth.leaves]
            yield {draft.index: draft.growth.tree for draft in drafts}

    def _unfed(self, row: Row) -> list[int]:
        """Cut the row back to where it agrees with the answer; return what must be fed, the last token at least."""
        cache, index, known, latest = self._cache, row.index, self._fed[row.index], self._latest[row.index]
        prefill = self._prefills.pop(index, None)
        if prefill is not None:  # it is fed, and what it was fed from is not needed any more
            cache.publish(index, prefill.words)
        tokens = [self._roots[index], *row.answer]
        same = 0
        while same < min(len(known), len(tokens) - 1) and known[same] == tokens[same]:
            same += 1
        if same < len(known) or latest is None:
            cache.truncate(index, self._prompts[index] + same)
        else:
            path = latest.path(tokens[same:-1])
            cache.keep(index, path)
            known += tokens[same : same + len(path)]
            same = len(known)
        del known[same:]
        return tokens[same:]

    @torch.no_grad()
    def _feed_long(self, draft: _Draft) -> None:
        """Feed the answer's tokens in pieces until the last MOST_PENDING are left: one that is taken up again elsewhere
        has thousands, whose attention would not fit one forward's memory."""
        cache, index = self._cache, draft.index
        while len(draft.unfed) > MOST_PENDING:
            piece, draft.unfed = draft.unfed[:MOST_PENDING], draft.unfed[MOST_PENDING:]
            for _ in forward_layers(self._vlm, cache, [Chunk(index, piece, cache.chain(index, MOST_PENDING))]):
                pass
            cache.keep(index, range(cache.length[index], cache.used[index]))
            self._fed[index] += piece

    @torch.no_grad()
    def _forward(self, drafts: Sequence[_Draft]) -> None:
        """Feed the leaves of these drafts in one forward, in the first one what the answer got since the last."""
        for output in forward_layers(self._vlm, self._cache, [self._chunk(draft) for draft in drafts]):
            hidden = output.hidden
        counts = [len(draft.growth.leaves) for draft in drafts]
        last = torch.cat([each[-count:] for each, count in zip(hidden, counts, strict=True)])
        for draft, logits in zip(drafts, torch.split(final_logits(self._vlm, last), counts), strict=True):
            self._settle(draft, logits)

    def _chunk(self, draft: _Draft) -> Chunk:
        index, growth, leaves = draft.index, draft.growth, draft.growth.leaves
        if leaves == (ROOT,):
            return Chunk(index, draft.unfed, self._cache.chain(index, len(draft.unfed)))
        end = self._cache.length[index] - 1
        parents = [growth[leaf].parent for leaf in leaves]
        slots = [end if parent == ROOT else draft.slots[parent] for parent in parents]
        return Chunk(index, [growth[leaf].token for leaf in leaves], slots)

    def _settle(self, draft: _Draft, logits: Tensor) -> None:
        """Note where the tokens of a forward went, grow the tree, and free the slots of what was pruned."""
        cache, index, growth = self._cache, draft.index, draft.growth
        if growth.leaves == (ROOT,):
            cache.keep(index, range(cache.length[index], cache.used[index]))
            self._fed[index] += draft.unfed
        else:
            first = cache.used[index] - len(growth.leaves)
            draft.slots |= {leaf: first + place for place, leaf in enumerate(growth.leaves)}
        draft.grow(logits)
        kept = {node: slot for node, slot in draft.slots.items() if node in growth}
        if len(kept) < len(draft.slots):
            moved = cache.keep(index, (), list(kept.values()))
            draft.slots = {node: moved[slot] for node, slot in kept.items()}
