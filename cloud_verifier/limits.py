"""Rate limits, shares and bounded queues of a peer. Time is given, in seconds."""

from __future__ import annotations

from collections import OrderedDict, deque
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
