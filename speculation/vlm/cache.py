"""Keys and values of many sessions: rows of slots in blocks of one pool, whose bookkeeping is integers.

A row is a table of blocks (`speculation.vlm.blocks`), which it takes as it grows. Row r holds `length[r]` committed
slots, then scratch slots up to `used[r]`: tokens that were fed but not committed, each with a parent slot (`length[r]
- 1` is the prefix's end), so the scratch is a tree. Rolling back is setting an integer; committing a path moves only
the slots that are not yet in their place.

Attention reads a row in place where its blocks lie in order, as those of a lone session do; rows of other passes are
gathered block by block, on a GPU too. Of what torch 2.13 has, nothing reads through tables here. `varlen_attn` with its
`block_table` runs on a GPU alone and knows causal masks and windows only, so it could score prefills, decodes and
chains, but no token trees. `flex_attention` knows any mask; on a CPU it is compiled for every shape, which took 38 s
for the first, and not in float64, in which exactness is proven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from speculation.vlm.blocks import BLOCK, BlockPool, PoolEmpty, blocks_for, prefix_keys
from speculation.vlm.model import Vlm
from speculation.vlm.plan import Fed, Plan, TreePlan

PADDING = 1.25
PADDING_PAIRS = 1.6
"""Tokens that a padded forward may compute for each one that it feeds, and query-key pairs that it may score for each
pair of its rows' own; rows less alike are packed."""
NO_PREFIXES: Mapping[int, npt.NDArray[np.int64]] = MappingProxyType({})
_NO_POSITIONS = np.empty((3, 0), dtype=np.int64)
Pad: TypeAlias = Callable[[int, int, int, int], tuple[int, int, int, int]]
"""Returns to which rows, tokens a row, blocks a row and slots behind a prefix a forward of so many is padded."""
_Layout: TypeAlias = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], "npt.NDArray[np.bool_] | None"
]
"""Where a plan writes and reads in the pool, its positions and what it sees of the slots, on the host."""


class CacheFull(RuntimeError):
    """A row, or the pool, has no slots left for the tokens that the row was given."""


class KVCache:
    """Keys and values of `rows` sessions with room for `capacity` tokens each, in a pool of `blocks`, allocated once.

    blocks: None for as many as all rows can fill. With fewer, rows may find the pool empty (CacheFull). Prompts that
    begin alike share blocks, see `open`. Public state, to read: `rows`, `capacity`, `blocks` (the spare one not
    counted), and `length`, `used`, `delta` (lists of int, one entry a row).
    """

    def __init__(self, vlm: Vlm, rows: int, capacity: int, blocks: int | None = None) -> None:
        if rows < 1 or capacity < 1:
            raise ValueError(f"cache of {rows} rows x {capacity} slots: both must be at least 1")
        if capacity > vlm.context:
            raise ValueError(f"capacity {capacity} is more than the {vlm.context} tokens that the model was made for")
        blocks = rows * blocks_for(capacity) if blocks is None else blocks
        if blocks < 1:
            raise ValueError(f"cache of {blocks} blocks: at least 1 is needed")
        self.rows, self.capacity, self.blocks = rows, capacity, blocks
        self.length, self.used, self.delta = [0] * rows, [0] * rows, [0] * rows
        self._epoch = [0] * rows
        self._parent = np.full((rows, capacity), -1, dtype=np.int64)
        self._logical = np.zeros((rows, capacity), dtype=np.int64)
        self._pool = BlockPool(blocks, self._wipe)
        self._tables: list[list[int]] = [[] for _ in range(rows)]
        self.spans = vlm.spans
        # The spare block behind the others takes what padding tokens write; no table has it.
        slots = (blocks + 1) * BLOCK
        self.keys_and_values = tuple(
            torch.zeros((len(span.layers), 2, vlm.kv_heads, slots, vlm.head_dim), dtype=vlm.dtype, device=span.device)
            for span in self.spans
        )
        """A span's keys and values, on its device: [layers of the span, 2, heads, slots, head_dim]."""

    @staticmethod
    def block_bytes_by_device(vlm: Vlm) -> dict[torch.device, int]:
        """Return the bytes that one block takes on each of a model's devices."""
        layer = 2 * vlm.kv_heads * BLOCK * vlm.head_dim * vlm.dtype.itemsize
        layers = Counter(span.device for span in vlm.spans for _ in span.layers)
        return {device: count * layer for device, count in layers.items()}

    @property
    def nbytes(self) -> int:
        """Size of the keys and values in bytes."""
        return sum(part.nbytes for part in self.keys_and_values)

    def keep(self, row: int, path: Sequence[int], survivors: Sequence[int] = ()) -> dict[int, int]:
        """Commit the scratch slots `path`, retain `survivors` as scratch, drop the rest; return old slot -> new slot.

        `path` is a chain from the prefix's end (it may be empty); every survivor's parent is the path's end or another
        survivor. Raises ValueError, with nothing changed, for anything else.
        """
        length, kept = self.length[row], sorted(set(survivors))
        for slot in (*path, *kept):
            if not length <= slot < self.used[row]:
                raise ValueError(f"slot {slot} is not in the scratch {length}..{self.used[row] - 1} of row {row}")
        end = length - 1
        for slot in path:
            if self._parent[row, slot] != end:
                raise ValueError(f"slot {slot} does not follow slot {end}: a committed path is a chain from the prefix")
            end = slot
        known = {end}
        for slot in kept:
            if int(self._parent[row, slot]) not in known:
                raise ValueError(f"surviving slot {slot} does not descend from slot {end}, the end of the path")
            known.add(slot)
        old = [*path, *kept]
        new = {slot: length + index for index, slot in enumerate(old)}
        self._move(row, old, length)
        new_end = length + len(path) - 1
        for slot in kept:
            parent = int(self._parent[row, slot])
            self._parent[row, new[slot]] = new_end if parent == end else new[parent]
            self._logical[row, new[slot]] = self._logical[row, slot]
        self.length[row], self.used[row] = length + len(path), length + len(old)
        self._epoch[row] += 1
        return new

    def truncate(self, row: int, used: int) -> None:
        """Forget all slots from `used` on, committed ones too, and give their blocks back.

        Raises ValueError if the row has fewer.
        """
        if not 0 <= used <= self.used[row]:
            raise ValueError(f"cannot truncate row {row} to {used} slots, it has {self.used[row]}")
        self.used[row], self.length[row] = used, min(self.length[row], used)
        self._epoch[row] += 1
        table, need = self._tables[row], blocks_for(used)
        while len(table) > need:
            self._pool.give_back(table.pop())

    def clear(self, row: int, delta: int = 0) -> None:
        """Empty a row and wipe its numbers, so that nothing of one session can reach the next.

        Only a prompt's published beginning stays, for prompts that begin with the same tokens. What is fed behind the
        row's next prompt stands `delta` behind its own count (M-RoPE).
        """
        self.truncate(row, 0)
        self.delta[row] = delta

    def open(self, row: int, tokens: Sequence[int], delta: int = 0) -> int:
        """Clear a row, then commit what the pool knows of its prompt; return how many of the prompt's tokens that is.

        `tokens` are those before the image, whose positions are their places: whatever whole blocks of them another row
        has, or had lately, are shared with it (`publish`).
        """
        self.clear(row, delta)
        self._tables[row] = self._pool.find(prefix_keys(tokens))
        self.used[row] = self.length[row] = len(self._tables[row]) * BLOCK
        return self.length[row]

    def publish(self, row: int, tokens: Sequence[int]) -> None:
        """Let other rows share the first blocks of a row, which hold the committed `tokens` of a prompt's beginning.

        Raises ValueError where the row has committed fewer.
        """
        if len(tokens) > self.length[row]:
            raise ValueError(f"row {row} has {self.length[row]} committed tokens, {len(tokens)} cannot be shared")
        keys = prefix_keys(tokens)
        self._pool.enter(keys, self._tables[row][: len(keys)])

    def chain(self, row: int, count: int) -> list[int]:
        """Return the parents of `count` tokens fed as a chain behind the prefix of a row."""
        used = self.used[row]
        return [self.length[row] - 1, *range(used, used + count - 1)][:count]

    def plan(
        self,
        rows: Sequence[int],
        parents: Sequence[Sequence[int]],
        prefixes: Mapping[int, npt.NDArray[np.int64]] = NO_PREFIXES,
    ) -> Plan:
        """Plan a ragged forward: row `rows[b]` gets tokens that follow its slots `parents[b]`, appended to its scratch.

        `prefixes[row]` are the M-RoPE positions [3, n] of a row whose first n tokens follow one another and lengthen
        its committed prefix: a prefill chunk, which sees what the row holds and is causal in itself. Of their parents
        only the number is read; tokens behind them are scratch that follows the longer prefix.

        Nothing counts before `advance`. Raises ValueError for an unknown or doubled row, no tokens, a parent that is
        neither the prefix's end nor a scratch slot before its child, or a prefix behind scratch; CacheFull where a row
        has no room.
        """
        fed = self._feed(rows, parents, prefixes)
        slots, blocks, positions, visible = (
            self._packed(fed, prefixes) if fed.packed else self._padded(rows, fed.counts)
        )
        return Plan(
            **vars(fed),
            slots=slots,
            start=self._start(rows[0]) if len(rows) == 1 else None,
            blocks=blocks,
            view=blocks.size * BLOCK if fed.packed and len(rows) > 1 else max(fed.ends),
            positions=positions,
            mask=None if visible is None else visible[:, None],
        )

    def plan_trees(self, rows: Sequence[int], parents: Sequence[Sequence[int]], pad: Pad) -> TreePlan:
        """Plan a forward of token trees that is captured: row `rows[b]` gets tokens that follow its slots `parents[b]`.

        It is padded to the shape that `pad` returns. Nothing counts before `advance`. Raises as `plan`.
        """
        fed = replace(self._feed(rows, parents, NO_PREFIXES), packed=False)
        scratch = max(end - self.length[row] for row, end in zip(rows, fed.ends, strict=True))
        most = blocks_for(max(fed.ends))
        count, width, number, seen = pad(len(rows), max(fed.counts), most, scratch)
        slots = np.full((count, width), self.blocks * BLOCK)
        blocks = np.full((count, number), self._tables[rows[0]][0])
        positions = np.zeros((3, count, width), dtype=np.int64)
        lengths = np.ones(count, dtype=np.int64)
        tree = np.zeros((count, width, seen), dtype=np.bool_)
        for place, (row, end) in enumerate(zip(rows, fed.ends, strict=True)):
            table, length, own = self._tables[row], self.length[row], np.arange(self.used[row], end)
            visible = np.zeros((end - length, seen), dtype=np.bool_)
            for slot, parent in enumerate((self._parent[row, length:end] - length).tolist()):
                if parent >= 0:
                    visible[slot] = visible[parent]
                visible[slot, slot] = True
            blocks[place] = table[0]
            blocks[place, : len(table)] = table
            slots[place, : len(own)] = self._pooled(row, own)
            positions[:, place, : len(own)] = self._logical[row, own] + self.delta[row]
            lengths[place], tree[place, : len(own)] = length, visible[-len(own) :]
        return TreePlan(**vars(fed), slots=slots, blocks=blocks, positions=positions, lengths=lengths, tree=tree)

    def _feed(
        self, rows: Sequence[int], parents: Sequence[Sequence[int]], prefixes: Mapping[int, npt.NDArray[np.int64]]
    ) -> Fed:
        """Make room for what a forward feeds, and note what its tokens follow. Raises as `plan`."""
        if not rows or len(set(rows)) != len(rows):
            raise ValueError(f"a forward needs distinct rows, got {list(rows)}")
        for row in rows:
            if not 0 <= row < self.rows:
                raise ValueError(f"row {row} is not in 0..{self.rows - 1} of this cache")
        for row, each in zip(rows, parents, strict=True):
            if not each:
                raise ValueError(f"row {row} was given no tokens")
            self._make_room(row, len(each))
            self._append(row, each, prefixes[row].shape[1] if row in prefixes else 0)
        counts = tuple(len(each) for each in parents)
        ends = tuple(self.used[row] + count for row, count in zip(rows, counts, strict=True))
        return Fed(
            rows=tuple(rows),
            counts=counts,
            ends=ends,
            committed=tuple(prefixes[row].shape[1] if row in prefixes else 0 for row in rows),
            causal=tuple(map(self._is_causal, rows, ends)),
            epochs=tuple(self._epoch[row] for row in rows),
            packed=bool(prefixes) or len(rows) == 1 or not _alike(counts, ends),
        )

    def advance(self, plan: Fed) -> None:
        """Count the tokens of a finished forward, as scratch or as committed prefix.

        Raises RuntimeError if one of the rows was changed while the forward ran; its tokens are then void.
        """
        if tuple(self._epoch[row] for row in plan.rows) != plan.epochs:
            raise RuntimeError(f"rows {plan.rows} were changed while a forward over them was running")
        for row, count, committed in zip(plan.rows, plan.counts, plan.committed, strict=True):
            self.used[row] += count
            self.length[row] += committed
            self._epoch[row] += 1

    @property
    def layers(self) -> list[Tensor]:
        """The keys and values of each decoder layer [2, heads, slots, head_dim], to read and to write to."""
        return [layer for part in self.keys_and_values for layer in part]

    def _padded(self, rows: Sequence[int], counts: Sequence[int]) -> _Layout:
        starts = np.array([self.used[row] for row in rows], dtype=np.int64)
        lengths = np.array([self.length[row] for row in rows], dtype=np.int64)
        ends = starts + counts
        order, view = np.arange(max(counts)), int(ends.max())
        real = order < np.array(counts)[:, None]
        slots = np.where(real, starts[:, None] + order, self.capacity)
        index = np.array(rows)[:, None]
        logical = self._logical[index, np.where(real, slots, 0)]
        deltas = np.array([self.delta[row] for row in rows], dtype=np.int64)
        positions = np.broadcast_to(np.where(real, logical + deltas[:, None], 0), (3, *real.shape)).copy()
        visible = visible_slots(self._parent[index[:, 0]], slots, lengths, view)
        tables, most = [self._tables[row] for row in rows], blocks_for(view)
        # Behind a shorter row its own first block stands in: no mask keeps out another row's NaN.
        blocks = np.array([[*table[:most], *table[:1] * (most - len(table))] for table in tables])
        writes = [self._pooled(row, np.where(each, at, 0)) for row, each, at in zip(rows, real, slots, strict=True)]
        spare = self.blocks * BLOCK
        # Without a mask grouped-query attention needs no copy of the keys.
        plain = slots.shape[1] == 1 and bool(visible.all())
        return np.where(real, writes, spare), blocks, positions, None if plain else visible

    def _packed(self, fed: Fed, prefixes: Mapping[int, npt.NDArray[np.int64]]) -> _Layout:
        slots, blocks, positions, visible = [], [], [], []
        for row, end in zip(fed.rows, fed.ends, strict=True):
            slots.append(self._pooled(row, np.arange(self.used[row], end)))
            blocks.append(self._tables[row][: blocks_for(end)])
            place, seen = self._packed_row(row, end, prefixes.get(row, _NO_POSITIONS))
            positions.append(place)
            visible.append(seen)
        places = np.concatenate(positions, axis=1)[:, None]
        plain = len(fed.rows) == 1 and (fed.causal[0] or bool(visible[0].all()))
        mask = visible[0] if len(fed.rows) == 1 else _block_diagonal(visible)
        return np.concatenate(slots)[None], np.concatenate(blocks)[None], places, None if plain else mask[None]

    def _packed_row(
        self, row: int, end: int, prefix: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return positions [3, n] and what is seen [n, end] of the tokens that a row is fed, up to slot `end`.

        `prefix` are the positions of those that lengthen its prefix.
        """
        known = prefix.shape[1]
        behind = self.used[row] + known
        own = np.tile(self._logical[row, behind:end] + self.delta[row], (3, 1))
        seen = visible_slots(
            self._parent[[row]], np.arange(behind, end)[None], np.array([self.length[row] + known]), end
        )[0]
        if not known:
            return own, seen
        causal = np.tri(known, end, self.used[row], dtype=np.bool_)
        return np.concatenate([prefix, own], axis=1), np.concatenate([causal, seen])

    def _is_causal(self, row: int, end: int) -> bool:
        """Return whether a row is empty and what it is fed, up to slot `end`, is a chain."""
        return not self.used[row] and bool((self._parent[row, :end] == np.arange(-1, end - 1)).all())

    def _start(self, row: int) -> int | None:
        """Return where a row begins in the pool if its blocks lie in order there."""
        table = self._tables[row]
        return table[0] * BLOCK if table == list(range(table[0], table[0] + len(table))) else None

    def _pooled(self, row: int, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where slots of a row lie in the pool."""
        table = np.array(self._tables[row], dtype=np.int64)
        return table[slots // BLOCK] * BLOCK + slots % BLOCK

    def _make_room(self, row: int, count: int) -> None:
        """Let a row have blocks of its own for `count` more tokens. Raises CacheFull."""
        table, used = self._tables[row], self.used[row]
        if used + count > self.capacity:
            raise CacheFull(
                f"row {row} holds {used} of {self.capacity} tokens and cannot take {count} more; "
                "use a larger capacity, a smaller image or a shorter prompt"
            )
        try:
            for place in range(used // BLOCK, blocks_for(used + count)):
                # A row that grows where it began lies in order, as far as others let it.
                near = table[place - 1] + 1 if place else row * self.blocks // self.rows
                if place == len(table):
                    table.append(self._pool.take(near))
                elif not self._pool.writable(table[place]):
                    own, shared = self._pool.take(near), table[place]
                    for fresh, held in zip(self._slots(own), self._slots(shared), strict=True):
                        fresh.copy_(held)
                    table[place] = own
                    self._pool.give_back(shared)
        except PoolEmpty as error:
            raise CacheFull(f"row {row} holds {used} tokens and cannot take {count} more: {error}") from None

    def _slots(self, block: int) -> list[Tensor]:
        """Return a block's keys and values by span [layers, 2, heads, BLOCK, head_dim], to write to."""
        return [part[:, :, :, block * BLOCK : (block + 1) * BLOCK] for part in self.keys_and_values]

    def _wipe(self, block: int) -> None:
        for part in self._slots(block):
            part.zero_()

    def _append(self, row: int, parents: Sequence[int], known: int) -> None:
        """Note what the tokens of a row follow, of which the first `known` lengthen its prefix."""
        start, length = self.used[row], self.length[row] + known
        if known and start != self.length[row]:
            raise ValueError(
                f"row {row} holds {start - self.length[row]} uncommitted tokens, no prefix may follow them"
            )
        prefix = np.arange(start, start + known)
        self._parent[row, prefix], self._logical[row, prefix] = prefix - 1, prefix
        for slot, parent in enumerate(parents[known:], start=start + known):
            if not length - 1 <= parent < slot:
                raise ValueError(f"parent {parent} of slot {slot} must be in {length - 1}..{slot - 1} of row {row}")
            self._parent[row, slot] = parent
            self._logical[row, slot] = length if parent < length else self._logical[row, parent] + 1

    def _move(self, row: int, old: Sequence[int], start: int) -> None:
        # Old slots ascend and new ones are dense, so once one has to move, all behind it have to.
        skip = next((index for index, slot in enumerate(old) if slot != start + index), len(old))
        if skip == len(old):
            return
        source = self._pooled(row, np.array(old[skip:]))
        target = self._pooled(row, np.arange(start + skip, start + len(old)))
        for part in self.keys_and_values:
            moved = part.index_select(3, torch.from_numpy(source).to(part.device))
            part.index_copy_(3, torch.from_numpy(target).to(part.device), moved)


class CacheWriter:
    """Stores a layer's new keys and values in one forward, and returns all that its rows can see."""

    def __init__(self, cache: KVCache, plan: Plan, slots: Tensor, blocks: Tensor) -> None:
        """`slots` and `blocks` are those of the plan, on the model's device."""
        self._kv, self._spans, self._plan = cache.keys_and_values, cache.spans, plan
        self._slots, self._blocks = slots.flatten(), blocks.flatten()
        self._part, self._first = self._kv[0], 0

    def enter(self, span: int) -> None:
        """Go on with the layers of a span, whose device the next keys and values are on."""
        self._part, self._first = self._kv[span], self._spans[span].first
        self._slots, self._blocks = (each.to(self._part.device) for each in (self._slots, self._blocks))

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values, [B, heads, width, head_dim] as the plan lays them out.

        Returns those in view: [B, heads, view, head_dim], packed [1, heads, all views, head_dim].
        """
        place = layer - self._first
        return self._update(self._part[place, 0], keys), self._update(self._part[place, 1], values)

    def _update(self, stored: Tensor, fresh: Tensor) -> Tensor:
        plan = self._plan
        if plan.start is not None:
            end = plan.start + plan.ends[0]
            stored[:, end - plan.counts[0] : end] = fresh[0]
            return stored[None, :, plan.start : end]
        stored.index_copy_(1, self._slots, fresh.transpose(0, 1).flatten(1, 2))
        heads, _, width = stored.shape
        seen = stored.view(heads, -1, BLOCK * width).index_select(1, self._blocks)
        return seen.view(heads, len(plan.blocks), -1, width).transpose(0, 1)[:, :, : plan.view]


def _alike(counts: Sequence[int], ends: Sequence[int]) -> bool:
    """Return whether rows that feed so many tokens, and then see so many slots, waste little when they are padded."""
    computed = len(counts) * max(counts)
    pairs = sum(count * end for count, end in zip(counts, ends, strict=True))
    return computed <= PADDING * sum(counts) and computed * max(ends) <= PADDING_PAIRS * pairs


def _block_diagonal(parts: Sequence[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    """Return what the rows of a packed forward see: each its own slots, which fill whole blocks of the cache."""
    widths = [blocks_for(part.shape[1]) * BLOCK for part in parts]
    whole = np.zeros((sum(part.shape[0] for part in parts), sum(widths)), dtype=np.bool_)
    row = column = 0
    for part, width in zip(parts, widths, strict=True):
        whole[row : row + part.shape[0], column : column + part.shape[1]] = part
        row, column = row + part.shape[0], column + width
    return whole


def visible_slots(
    parents: npt.NDArray[np.int64], slots: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], view: int
) -> npt.NDArray[np.bool_]:
    """Return which of the first `view` slots each token sees [B, width, view]: the prefix, its ancestors, itself.

    `parents` [B, capacity] are the parent slots, `slots` [B, width] where the tokens stand (padding: at or behind the
    capacity), `lengths` [B] the committed slots. All tokens climb to the prefix together, one generation at a time.
    """
    capacity = parents.shape[1]
    visible = np.repeat(np.arange(view) < lengths[:, None, None], slots.shape[1], axis=1)
    current = slots.copy()
    while True:
        row, token = np.nonzero((current >= lengths[:, None]) & (current < capacity))
        if not len(row):
            break
        slot = current[row, token]
        visible[row, token, slot] = True
        current[row, token] = parents[row, slot]
    # A padding token on an empty row would see nothing, and a softmax over nothing is NaN.
    visible[..., 0] |= ~visible.any(axis=2)
    return visible
