"""Who has which block of a pool of keys and values: references, shared prompt prefixes, eviction. Integers alone.

A block holds BLOCK slots of every layer (PagedAttention, Kwon et al. 2023). A row of a cache is a table of blocks; rows
whose prompts begin alike may have blocks in common, which are then read only: who writes copies first.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence

BLOCK = 16
"""Slots of a block."""


def blocks_for(slots: int) -> int:
    """Return how many blocks hold so many slots."""
    return -(-slots // BLOCK)


def prefix_keys(tokens: Sequence[int]) -> list[bytes]:
    """Return a key for each whole block of a prompt: it names the block's tokens and all before them, so its place."""
    keys, digest = [], b""
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        part = struct.pack(f"<{BLOCK}q", *tokens[end - BLOCK : end])
        digest = hashlib.blake2b(digest + part, digest_size=16).digest()
        keys.append(digest)
    return keys


class PoolEmpty(RuntimeError):
    """All blocks of a pool are taken."""


class BlockPool:
    """Blocks 0 to `size` - 1, each free, or held by as many tables as it has references.

    A block that was entered as a prompt's prefix stays when its last table gives it back, until its place is needed:
    the one that was used least recently goes first. `wipe` is called with a block before it becomes free, so a free
    block holds nothing of anybody.
    """

    def __init__(self, size: int, wipe: Callable[[int], None]) -> None:
        self.size = size
        self._wipe = wipe
        self._references = [0] * size
        self._free = set(range(size))
        self._of_key: OrderedDict[bytes, int] = OrderedDict()
        """Blocks of prefixes, the least recently used first."""
        self._key_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """Blocks that may be taken: those that nobody has, prefixes that no table uses among them."""
        return len(self._free) + sum(not self._references[block] for block in self._key_of)

    def writable(self, block: int) -> bool:
        """Whether the one table that has a block may write to it: nobody else reads it, now or later."""
        return self._references[block] == 1 and block not in self._key_of

    def take(self, near: int) -> int:
        """Return a free block, `near` itself if it is free. Raises PoolEmpty."""
        if not self._free and not self._evict():
            raise PoolEmpty(f"all {self.size} blocks of {BLOCK} slots are taken")
        block = near if near in self._free else next(iter(self._free))
        self._free.remove(block)
        self._references[block] = 1
        return block

    def give_back(self, block: int) -> None:
        """A table has a block no longer."""
        self._references[block] -= 1
        if not self._references[block] and block not in self._key_of:
            self._wipe(block)
            self._free.add(block)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of a prompt with these keys, for one more table."""
        found = []
        for key in keys:
            block = self._of_key.get(key)
            if block is None:
                break
            self._references[block] += 1
            found.append(block)
        self._touch(keys[: len(found)])
        return found

    def enter(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Note that a table's first `blocks` hold the prefix with these keys. What is known already stays as it is."""
        for key, block in zip(keys, blocks, strict=True):
            if key not in self._of_key and block not in self._key_of:
                self._of_key[key], self._key_of[block] = block, key
        self._touch(keys)

    def _touch(self, keys: Sequence[bytes]) -> None:
        # The end of a prefix is older than its beginning, without which it cannot be found.
        for key in reversed(keys):
            if key in self._of_key:
                self._of_key.move_to_end(key)

    def _evict(self) -> bool:
        """Free the prefix block that no table has and that was used least recently; False where there is none."""
        for key, block in self._of_key.items():
            if not self._references[block]:
                del self._of_key[key], self._key_of[block]
                self._wipe(block)
                self._free.add(block)
                return True
        return False
