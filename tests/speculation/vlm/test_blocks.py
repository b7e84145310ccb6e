"""Blocks of keys and values: the cache against whole rows, under random use of a pool that is too small for all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.vlm.blocks import BLOCK, blocks_for
from speculation.vlm.cache import CacheFull, CacheWriter, KVCache, Plan
from speculation.vlm.model import Vlm
from speculation.vlm.placement import Span
from speculation.vlm.positions import text_positions

CAPACITY = 60
ROWS, BLOCKS = 3, 7
CPU = torch.device("cpu")
NUMBERS = cast(
    Vlm,
    SimpleNamespace(
        num_layers=1,
        kv_heads=1,
        head_dim=1,
        context=CAPACITY,
        dtype=torch.float64,
        device=CPU,
        spans=(Span(0, 1, CPU),),
    ),
)
"""A model whose keys are one number each."""


class WholeRows:
    """The slow reference: each row is a list of slots, and a slot holds the tokens on its path."""

    def __init__(self) -> None:
        self.slots: list[list[tuple[int, ...]]] = [[] for _ in range(ROWS)]
        self.length = [0] * ROWS
        self._names: dict[tuple[int, ...], int] = {}

    def number(self, path: tuple[int, ...]) -> float:
        """Return the key of a token on this path: one for each path, never 0."""
        return float(self._names.setdefault(path, len(self._names) + 1))

    def numbers(self, row: int) -> list[float]:
        return [self.number(path) for path in self.slots[row]]

    def path(self, row: int, parent: int) -> tuple[int, ...]:
        return self.slots[row][parent] if parent >= 0 else ()

    def keep(self, row: int, old: list[int], committed: int) -> None:
        length = self.length[row]
        self.slots[row] = [*self.slots[row][:length], *(self.slots[row][slot] for slot in old)]
        self.length[row] = length + committed

    def truncate(self, row: int, used: int) -> None:
        del self.slots[row][used:]
        self.length[row] = min(self.length[row], used)


class Use:
    """A cache and its reference, used alike."""

    def __init__(self) -> None:
        self.cache = KVCache(NUMBERS, ROWS, CAPACITY, BLOCKS)
        self.whole = WholeRows()

    def begin(self, row: int, prompt: list[int], words: int = CAPACITY) -> None:
        """Prefill a prompt whose first `words` tokens may be shared."""
        self.whole.truncate(row, 0)
        known = self.cache.open(row, prompt[:words])
        rest = list(range(known, len(prompt)))
        self.whole.slots[row] = [tuple(prompt[: slot + 1]) for slot in range(known)]
        self.whole.length[row] = known
        if rest:
            plan = self.cache.plan([row], [rest], {row: text_positions(len(prompt))[:, known:]})
            self.run(plan, {row: [tuple(prompt[: slot + 1]) for slot in rest]})
            self.cache.advance(plan)
            self.whole.slots[row] += [tuple(prompt[: slot + 1]) for slot in rest]
        self.whole.length[row] = len(prompt)
        self.cache.publish(row, prompt[:words])

    def feed(self, trees: dict[int, list[tuple[int, int]]], finish: bool, prefix: int | None = None) -> None:
        """Feed (parent slot, token) to each row; to row `prefix` as a chunk of its prompt.

        `finish` False: the forward is given up at its end.
        """
        chunks = {} if prefix is None else {prefix: text_positions(len(trees[prefix]))}
        plan = self.cache.plan(list(trees), [[parent for parent, _ in tree] for tree in trees.values()], chunks)
        before = {row: list(self.whole.slots[row]) for row in trees}
        new: dict[int, list[tuple[int, ...]]] = {}
        for row, tree in trees.items():
            for parent, token in tree:
                self.whole.slots[row].append((*self.whole.path(row, parent), token))
            new[row] = self.whole.slots[row][len(before[row]) :]
        self.run(plan, new)
        if finish:
            self.cache.advance(plan)
            if prefix is not None:
                self.whole.length[prefix] = len(self.whole.slots[prefix])
        else:
            for row, slots in before.items():
                self.whole.slots[row] = slots

    def run(self, plan: Plan, new: dict[int, list[tuple[int, ...]]]) -> None:
        """Write the new tokens' keys as a layer does, and look at what it reads."""
        keys = torch.full((*plan.slots.shape, 1), -1.0, dtype=torch.float64)
        for part, row in zip(plan.split(keys), plan.rows, strict=True):
            part[:, 0] = torch.tensor([self.whole.number(path) for path in new[row]])
        slots, blocks = torch.from_numpy(plan.slots), torch.from_numpy(plan.blocks)
        seen, same = CacheWriter(self.cache, plan, slots, blocks).update(keys[:, None], keys[:, None], 0)
        assert torch.equal(seen, same)
        widths = [blocks_for(end) * BLOCK for end in plan.ends] if len(plan.rows) > 1 else list(plan.ends)
        views = torch.split(seen[0, 0], widths) if plan.packed else seen[:, 0]
        for view, row in zip(views, plan.rows, strict=True):
            held = [*self.whole.numbers(row)[: self.cache.used[row]], *(self.whole.number(path) for path in new[row])]
            assert view[: len(held), 0].tolist() == held

    def check(self) -> None:
        cache, pool = self.cache, self.cache._pool
        stored = cache.keys_and_values[0][0, 0, 0, :, 0].view(-1, BLOCK)
        tables = cache._tables
        for row in range(ROWS):
            assert (cache.length[row], cache.used[row]) == (self.whole.length[row], len(self.whole.slots[row]))
            assert stored[tables[row]].flatten()[: cache.used[row]].tolist() == self.whole.numbers(row)
            assert len(tables[row]) >= blocks_for(cache.used[row])
        users = [sum(block in table for table in tables) for block in range(BLOCKS)]
        assert users == pool._references
        assert all(len(set(table)) == len(table) for table in tables)
        assert all(users[block] == 1 or block in pool._key_of for table in tables for block in table)
        idle = [block for block in range(BLOCKS) if not users[block]]
        assert pool.free == len(idle) and sum(1 for count in users if count) <= BLOCKS
        for block in idle:
            assert block in pool._key_of or not stored[block].any(), "a free block holds somebody's numbers"
        assert cache.nbytes == (BLOCKS + 1) * KVCache.block_bytes_by_device(NUMBERS)[CPU]


PROMPTS = st.tuples(st.sampled_from([0, 15, 16, 31, 32, 40, 48]), st.lists(st.integers(0, 1), max_size=5)).map(
    lambda parts: [*range(parts[0]), *parts[1]]
)
"""Most begin alike."""


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_blocks_hold_what_whole_rows_would(data: st.DataObject) -> None:
    use = Use()
    for _ in range(data.draw(st.integers(5, 25))):
        row = data.draw(st.integers(0, ROWS - 1))
        whole = use.whole
        act = data.draw(st.sampled_from(["begin", "begin", "feed", "feed", "keep", "truncate", "clear"]))
        try:
            if act == "begin":
                use.begin(row, data.draw(PROMPTS))
            elif act == "feed":
                trees = {}
                for each in data.draw(st.permutations(range(ROWS)))[: data.draw(st.integers(1, ROWS))]:
                    first = len(whole.slots[each])
                    trees[each] = [
                        (data.draw(st.integers(whole.length[each] - 1, first + node - 1)), data.draw(st.integers(5, 9)))
                        for node in range(data.draw(st.integers(1, 20)))
                    ]
                bare = [each for each in trees if whole.length[each] == len(whole.slots[each])]
                prefix = data.draw(st.sampled_from([None, *bare]))
                if prefix is not None:
                    start = whole.length[prefix] - 1
                    trees[prefix] = [(start + place, token) for place, (_, token) in enumerate(trees[prefix])]
                use.feed(trees, data.draw(st.booleans()), prefix)
            elif act == "keep":
                length, used = whole.length[row], len(whole.slots[row])
                path: list[int] = []
                parents = {slot: int(use.cache._parent[row, slot]) for slot in range(length, used)}
                while below := [s for s, p in parents.items() if p == (path[-1] if path else length - 1)]:
                    if data.draw(st.booleans()):
                        break
                    path.append(data.draw(st.sampled_from(below)))
                known = {path[-1] if path else length - 1}
                kept = []
                for slot in range(length, used):
                    if slot not in path and parents[slot] in known and data.draw(st.booleans()):
                        kept.append(slot)
                        known.add(slot)
                use.cache.keep(row, path, kept)
                whole.keep(row, [*path, *kept], len(path))
            elif act == "truncate":
                used = data.draw(st.integers(0, len(whole.slots[row])))
                use.cache.truncate(row, used)
                whole.truncate(row, used)
            else:
                use.cache.clear(row)
                whole.truncate(row, 0)
        except CacheFull:
            for each in range(ROWS):
                use.cache.truncate(each, use.cache.used[each])
                whole.truncate(each, use.cache.used[each])
        use.check()


def test_an_empty_pool_says_so() -> None:
    use = Use()
    use.begin(0, [1] * 60)
    use.begin(1, [2] * 48)
    with pytest.raises(CacheFull, match="row 2 holds 0 tokens and cannot take 1 more: all 7 blocks of 16 slots are"):
        use.cache.plan([2], [[-1]])


def test_only_committed_tokens_are_shared() -> None:
    use = Use()
    use.begin(0, list(range(16)))
    use.feed({0: [(15, 16)]}, finish=True)
    with pytest.raises(ValueError, match="row 0 has 16 committed tokens, 17 cannot be shared"):
        use.cache.publish(0, list(range(17)))
