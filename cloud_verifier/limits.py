"""Rate limits, shares and bounded queues of a peer. Time is given, in seconds."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field


class Allowance:
    """A token bucket for each key: `rate` a second, `burst` at once. Of more than MOST_KEYS the oldest are dropped."""

    MOST_KEYS = 4096

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def left(self, key: object, now: float) -> float:
        """Return what `key` may still use."""
        tokens, since = self._buckets.get(key, (self._burst, now))
        return min(self._burst, tokens + max(0.0, now - since) * self._rate)

    def take(self, key: object, now: float) -> bool:
        """Use one up; return False, and use none, where none is left."""
        left = self.left(key, now)
        taken = left >= 1.0
        self._buckets[key] = (left - taken, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self.MOST_KEYS:
            self._buckets.popitem(last=False)
        return taken


class Rate:
    """A quota for each key: `rate` a second, as much as `burst_s` seconds' worth at once. Of more than MOST_KEYS the
    oldest are dropped.

    A single use may be of any size, so that nobody with a small quota is kept out for ever; it is paid off before the
    next (the virtual scheduling form of the leaky bucket, ITU-T I.371).
    """

    MOST_KEYS = 4096

    def __init__(self, rate: float, burst_s: float) -> None:
        self.rate, self._burst_s = rate, burst_s
        self._paid_at: OrderedDict[object, float] = OrderedDict()

    def wait(self, key: object, now: float) -> float:
        """Return the seconds until `key` may use some again, 0 where it may."""
        return max(0.0, self._paid_at.get(key, -math.inf) - now - self._burst_s)

    def use(self, key: object, amount: float, now: float) -> float:
        """Enter a use, whatever was used before; return what `wait` was before it."""
        wait = self.wait(key, now)
        self._paid_at[key] = max(self._paid_at.get(key, -math.inf), now) + amount / self.rate
        self._paid_at.move_to_end(key)
        if len(self._paid_at) > self.MOST_KEYS:
            self._paid_at.popitem(last=False)
        return wait


@dataclass
class BoundedQueue:
    """Messages of one peer."""

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
    """Messages of many peers, each with a sharer; they are taken out in turns that are fair in bytes among sharers.

    Deficit round robin (Shreedhar and Varghese 1995): in every round a sharer may have `turn_bytes` more taken out, its
    peers together. Who has nothing more waiting keeps nothing for later.
    """

    def __init__(self, turn_bytes: int) -> None:
        self._turn_bytes = turn_bytes
        self._queues: dict[bytes, BoundedQueue] = {}
        self._sharers: dict[bytes, object] = {}
        self._turns: deque[bytes] = deque()
        """Peers with messages, the next one first."""
        self._left: dict[object, float] = {}
        """Bytes that may be taken out now, by sharer."""
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


@dataclass
class Usage:
    """What a session has used of something of late: an amount that halves every `half_life_s`."""

    half_life_s: float
    amount: float = 0.0
    at: float = 0.0
    """When the amount was entered."""

    def now(self, now: float) -> float:
        """Return what counts now."""
        return float(self.amount * 0.5 ** ((now - self.at) / self.half_life_s))

    def add(self, amount: float, now: float) -> None:
        """Enter a use."""
        self.amount, self.at = self.now(now) + amount, now
