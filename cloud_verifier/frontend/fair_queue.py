"""Queues messages, within bounds, and takes them out in turns that are fair in bytes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class BoundedQueue:
    """A queue keeps the messages of one peer."""

    size: int = 0
    items: deque[list[bytes]] = field(default_factory=deque)

    def put(self, frames: list[bytes], most: int, most_bytes: int) -> bool:
        """Append a message; return False where more than `most`, or more than `most_bytes` bytes, would wait."""
        size = sum(map(len, frames))
        if len(self.items) >= most or self.size + size > most_bytes:
            return False
        self.items.append(frames)
        self.size += size
        return True

    def pop(self) -> list[bytes]:
        frames = self.items.popleft()
        self.size -= sum(map(len, frames))
        return frames


class Inboxes:
    """The messages of many peers wait here and are taken out in turns that are fair in bytes among sharers.

    Each peer has a sharer, to which others may belong too.

    Deficit round robin (Shreedhar and Varghese 1995): in every round a sharer may have `turn_bytes` more taken out, its
    peers together. Who has nothing more waiting keeps nothing for later.
    """

    def __init__(self, turn_bytes: int) -> None:
        self._turn_bytes = turn_bytes
        self._queues: dict[bytes, BoundedQueue] = {}
        self._sharers: dict[bytes, object] = {}
        self._turns: deque[bytes] = deque()
        """The peers that have messages, the next one first."""
        self._left: dict[object, float] = {}
        """How many bytes of a sharer may be taken out now."""
        self._peers: Counter[object] = Counter()
        """How many peers with messages a sharer has."""

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the peers with messages."""
        return iter(tuple(self._queues))

    def put(self, peer: bytes, sharer: object, frames: list[bytes], most: int, most_bytes: int) -> bool:
        """Append a message; return False where more than `most`, or more than `most_bytes` bytes, would wait."""
        queue = self._queues.get(peer, BoundedQueue())
        if not queue.put(frames, most, most_bytes):
            return False
        if peer not in self._queues:
            self._queues[peer], self._sharers[peer] = queue, sharer
            self._turns.append(peer)
            self._peers[sharer] += 1
            self._left.setdefault(sharer, 0.0)
        return True

    def pop(self) -> tuple[bytes, list[bytes]] | None:
        """Return a peer and its next message; None where there is none."""
        while self._turns:
            peer = self._turns[0]
            queue, sharer = self._queues[peer], self._sharers[peer]
            size = sum(map(len, queue.items[0]))
            if self._left[sharer] >= size:
                self._left[sharer] -= size
                frames = queue.pop()
                if not queue.items:
                    self.drop(peer)
                return peer, frames
            # A sharer with several peers gets as much in a round as one with a single peer.
            self._left[sharer] += self._turn_bytes / self._peers[sharer]
            self._turns.rotate(-1)
        return None

    def drop(self, peer: bytes) -> None:
        """Drop a peer's messages, if it has any."""
        if self._queues.pop(peer, None) is None:
            return
        self._turns.remove(peer)
        sharer = self._sharers.pop(peer)
        self._peers[sharer] -= 1
        if not self._peers[sharer]:
            del self._peers[sharer], self._left[sharer]
