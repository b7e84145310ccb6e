"""Limits rates and sums what was used of late. Time is given, in seconds."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

_TICK_S = 1e-6
"""A shorter wait is none: sums of times round."""


class Rate:
    """Keeps a quota for each key: `rate` a second, as much as `burst_s` seconds' worth at once. Of more than MOST_KEYS
    the oldest go.

    A single use may be of any size, so that nobody with a small quota is kept out for ever; it is paid off before the
    next (the virtual scheduling form of the leaky bucket, ITU-T I.371).
    """

    MOST_KEYS = 4096

    def __init__(self, rate: float, burst_s: float) -> None:
        self.rate, self._burst_s = rate, burst_s
        self._paid_at: OrderedDict[object, float] = OrderedDict()

    @classmethod
    def counted(cls, rate: float, burst: int) -> Rate:
        """Return a quota of single uses, of which `burst` may come at once."""
        return cls(rate, (burst - 1) / rate)

    def wait(self, key: object, now: float) -> float:
        """Return the seconds until `key` may use some again, 0 where it may."""
        wait = self._paid_at.get(key, -math.inf) - now - self._burst_s
        return wait if wait > _TICK_S else 0.0

    def use(self, key: object, amount: float, now: float) -> float:
        """Enter a use, whatever was used before; return what `wait` was before it."""
        wait = self.wait(key, now)
        self._paid_at[key] = max(self._paid_at.get(key, -math.inf), now) + amount / self.rate
        self._paid_at.move_to_end(key)
        if len(self._paid_at) > self.MOST_KEYS:
            self._paid_at.popitem(last=False)
        return wait

    def take(self, key: object, now: float) -> bool:
        """Use one; return False, and use none, where none may be used now."""
        if self.wait(key, now) > 0.0:
            return False
        self.use(key, 1.0, now)
        return True


@dataclass
class DecayingSum:
    """Sums what was used of late: what was entered halves every `half_life_s`."""

    half_life_s: float
    amount: float = 0.0
    at: float = 0.0
    """When the latest amount was entered."""

    def now(self, now: float) -> float:
        """Return what counts now."""
        return float(self.amount * 0.5 ** ((now - self.at) / self.half_life_s))

    def add(self, amount: float, now: float) -> None:
        """Enter a use."""
        self.amount, self.at = self.now(now) + amount, now
