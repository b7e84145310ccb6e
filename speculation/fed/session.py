"""One head, one answer: entries of the committed tokens, a tree of drafted ones, features that replace its own (torch).

Slots 0..length-1 hold the entries of the committed tokens, from the prompt's end on, the root's the last; node i, the
i-th token fed since the root, is slot length + i. An entry pairs a token with the feature of the token before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from speculation.acceptance import check_parents, check_path, descendants
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.features import Numbers, unpack
from speculation.fed.head import FedHead
from speculation.wire import MAX_PROMPT_FEATURES, ROOT, Jpegs

_FIRST_ROOM = 256


class FedSession:
    """A draft model (`edge_drafter.protocols.DraftModel`) that reads no frame and no prompt: it is fed.

    A session that was begun without committed tokens has no root until the first `feed` or `commit`.
    """

    def __init__(self, head: FedHead) -> None:
        self.head = head
        weight = head.embed.weight
        self._device, self._dtype = weight.device, weight.dtype
        self.tokens = np.array(head.config.short_list, dtype=np.int64)
        """The tokens that it can draft, ascending."""
        self._states: Tensor
        self._outputs: Tensor
        """State and output of each slot, [room, width]."""
        self._keys: Tensor
        self._values: Tensor
        """Keys and values of each slot, [room, heads, head_dim]."""
        self._room = 0
        self._make_room(_FIRST_ROOM // 2)
        self._start([])

    @property
    def root_is_new(self) -> bool:
        """Whether what follows the root is to be computed, for the first time or with another feature."""
        return self._length > 0 and not self._known[self._length - 1]

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        """Forget everything; the answer so far is `committed`, and nothing is known of the text before it.

        Raises ValueError for a token outside the vocabulary.
        """
        for token in committed:
            self._check_token(token)
        self._start(committed)

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        """Take the target's features: for each of `tokens` that of the token before it. `end`: the answer position
        behind the last of them.

        Tokens in front of those known so far become known, those that are not committed yet are left out. Entries get
        the target's feature in place of the head's own; what the root and those behind it come to changes with the next
        forward over them. Raises ValueError, with nothing changed, for other tokens than those committed, for a gap in
        front of these, or for features of another size.
        """
        features = unpack(packed, self.head.config.size)
        if len(features) != len(tokens):
            raise ValueError(f"{len(features)} features for {len(tokens)} tokens")
        first, here = end - len(tokens), self._first if self._length else 0
        known = self._tokens[: self._length]
        low, high = max(first, here), min(end, here + len(known))
        if first < -MAX_PROMPT_FEATURES or end < here or (not known and end > 0):
            raise ValueError(f"features of answer positions {first} to {end} do not reach those from {here} on")
        if low < high and list(tokens[low - first : high - first]) != known[low - here : high - here]:
            raise ValueError(f"features of answer positions {first} to {end} are of other tokens than those committed")
        for token in tokens:
            self._check_token(token)
        if first < high:
            self._prepend(tokens[: max(0, here - first)], first)
            self._take(features[: high - first], first)

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """Return the logits after the root. Raises RuntimeError while there is no root."""
        self._check_root()
        if self.root_is_new:
            self._compute_levels([], stop)
        (row,) = self._logits([self._length - 1])
        return np.asarray(row)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """Feed tokens, a forward for each level of them. Raises RuntimeError while there is no root."""
        self._check_root()
        used = len(self._tokens)
        check_parents(tokens, parents, used - self._length)
        for token in tokens:
            self._check_token(token)
        slots = list(range(used, used + len(tokens)))
        above = [self._length + parent for parent in parents]  # ROOT is -1
        self._make_room(used + len(tokens))
        self._tokens += tokens
        self._above += above
        self._known += [False] * len(tokens)
        for parent in above:
            self._places.append(self._places[parent] + 1)
        try:
            self._compute_levels(slots, stop)
        except Abandoned:
            for each in (self._tokens, self._above, self._known, self._places):
                del each[used:]
            raise
        return self._logits(slots)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """Commit a path. Entries keep the features that they were fed with until `feed` replaces them.

        Raises ValueError, with nothing changed, for a path that is no chain or a token outside the vocabulary.
        """
        self._check_token(next_token)
        length, count = self._length, len(self._tokens)
        end = length + check_path(path, [above - length for above in self._above[length:]])
        after = [slot for slot in range(length, count) if self._above[slot] == end]
        root = next((slot for slot in after if self._tokens[slot] == next_token), None)
        kept = descendants(root, self._above) if root is not None else []
        committed = [*range(length), *(length + node for node in path)]
        if root is None:
            self._arrange([*committed, None], len(committed) + 1)
            self._tokens[-1] = next_token
            self._places[-1] = self._places[-2] + 1 if committed else MAX_PROMPT_FEATURES
            if committed and self._known[-2]:
                self._states[len(committed)] = self._outputs[len(committed) - 1]
            return {}
        self._arrange([*committed, root, *kept], len(committed) + 1)
        return {root - length: ROOT} | {slot - length: node for node, slot in enumerate(kept)}

    # --- slots

    def _start(self, committed: Sequence[int]) -> None:
        self._first, self._length = 0, 0
        """Answer position of slot 0; how many slots are committed."""
        self._tokens: list[int] = []
        self._above: list[int] = []
        """The slot that each follows."""
        self._known: list[bool] = []
        """Whether the output is that of the entry as it stands."""
        self._places: list[int] = []
        """Places in the text, counted so that none is negative."""
        self._stale: set[int] = set()
        """Committed slots whose keys and values are to be projected."""
        self._prepend(committed, 0)

    def _prepend(self, tokens: Sequence[int], first: int) -> None:
        """Put entries of committed tokens, without features, in front of the others."""
        if not tokens:
            return
        count = len(tokens)
        self._arrange([*[None] * count, *range(len(self._tokens))], self._length + count)
        self._first = first
        self._tokens[:count] = tokens
        self._places[:count] = range(MAX_PROMPT_FEATURES + first, MAX_PROMPT_FEATURES + first + count)
        self._known[self._length - 1] = False  # the root sees more now

    def _take(self, features: Numbers, first: int) -> None:
        """Let the entries from answer position `first` on continue from these features."""
        low = first - self._first
        with torch.no_grad():
            numbers = torch.from_numpy(features).to(device=self._device, dtype=self._dtype)
            self._states[low : low + len(features)] = self.head.up(numbers)
        self._stale.update(range(low, low + len(features)))
        self._known[self._length - 1] = False

    def _arrange(self, order: Sequence[int | None], length: int) -> None:
        """Let slots be these, in this order; None for one that is blank, and committed. `length` are committed."""
        self._make_room(len(order))
        place = {old: new for new, old in enumerate(order) if old is not None}
        self._above = [*range(-1, length - 1), *(place[self._above[old]] for old in order[length:] if old is not None)]
        self._tokens = [0 if old is None else self._tokens[old] for old in order]
        self._known = [old is not None and self._known[old] for old in order]
        self._places = [0 if old is None else self._places[old] for old in order]
        self._stale = {place[old] for old in self._stale} | {new for new, old in enumerate(order) if old is None}
        source = torch.tensor([self._room - 1 if old is None else old for old in order], device=self._device)
        for buffer in (self._states, self._outputs, self._keys, self._values):
            buffer[: len(order)] = buffer[source]
        self._length = length

    def _make_room(self, slots: int) -> None:
        """Have room for so many slots; the last of the room stays blank."""
        if slots < self._room:
            return
        config = self.head.config
        room = max(2 * slots, _FIRST_ROOM)
        sizes = ((config.width,), (config.width,), (config.heads, config.head_dim), (config.heads, config.head_dim))
        fresh = [torch.zeros(room, *size, device=self._device, dtype=self._dtype) for size in sizes]
        if self._room:
            for buffer, old in zip(fresh, (self._states, self._outputs, self._keys, self._values), strict=True):
                buffer[: self._room] = old
        self._states, self._outputs, self._keys, self._values = fresh
        self._room = room

    # --- the layer

    @torch.no_grad()
    def _compute_levels(self, slots: Sequence[int], stop: Stop | None) -> None:
        """Compute the outputs of new slots and, where it is not known, of the root, parents before their children."""
        left = [*([self._length - 1] if self.root_is_new else []), *slots]
        while left:
            if stop is not None and stop():
                raise Abandoned
            ready = [slot for slot in left if slot < self._length or self._known[self._above[slot]]]
            for slot in ready:
                if slot >= self._length:
                    self._states[slot] = self._outputs[self._above[slot]]
            self._compute(ready)
            for slot in ready:
                self._known[slot] = True
            left = [slot for slot in left if slot not in ready]

    def _compute(self, slots: Sequence[int]) -> None:
        """Compute the outputs of slots whose states stand; each sees the committed ones, its ancestors and itself."""
        head, entering = self.head, [*sorted(self._stale.difference(slots)), *slots]
        self._stale.clear()
        where = torch.tensor(entering, device=self._device)
        rows = head.rows([self._tokens[slot] for slot in entering])
        places = torch.tensor([self._places[slot] for slot in entering], device=self._device)
        parts = head.enter(rows, self._states[where], places)
        self._keys[where], self._values[where] = parts.keys, parts.values
        used = max(max(slots) + 1, self._length)
        seen = np.zeros((len(slots), used), dtype=np.bool_)
        seen[:, : self._length] = True
        for row, slot in enumerate(slots):
            while slot >= self._length:
                seen[row, slot] = True
                slot = self._above[slot]
        attended = F.scaled_dot_product_attention(
            parts.queries[-len(slots) :].transpose(0, 1),
            self._keys[:used].transpose(0, 1),
            self._values[:used].transpose(0, 1),
            attn_mask=torch.from_numpy(seen).to(self._device)[None],
        )
        leaving = where[-len(slots) :]
        self._outputs[leaving] = head.leave(self._states[leaving], attended.transpose(0, 1))

    @torch.no_grad()
    def _logits(self, slots: Sequence[int]) -> Logits:
        config = self.head.config
        listed = self.head.logits(self._outputs[torch.tensor(slots, dtype=torch.long, device=self._device)])
        whole = np.full((len(slots), config.vocabulary), -np.inf, dtype=np.float64)
        whole[:, self.tokens] = listed.double().cpu().numpy()
        return whole

    # --- checks

    def _check_root(self) -> None:
        if not self._length:
            raise RuntimeError("the session has no root yet; begin with committed tokens, or feed it")

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.head.config.vocabulary:
            raise ValueError(f"token {token} is outside the vocabulary 0..{self.head.config.vocabulary - 1}")
