"""What a session has shown its ledger: how many drafted tokens are accepted, when drafts come, what its acts bring.

Times are seconds on one clock that is given.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

TICK_S = 1e-6
"""Shortest time that is counted with: a clock may stand still, and a wait must end."""


class Part(NamedTuple):
    """What a pass over the first `size` tokens of a draft, or over a draft so deep, brings and takes."""

    size: int
    tokens: float
    """E, those that it commits."""
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Acceptance:
    """Chance that the target accepts one more level of a draft: a running share, begun at one half with little weight.

    What does not pay is left alone and so never judged; a try is due now and then, ever more rarely, because acceptance
    may recover.
    """

    _SELDOM = (16, 256)

    def __init__(self, kept: float = 0.95, accepted: float = 0.5, judged: float = 1.0) -> None:
        """kept: how much of its past weighs after one more verdict; it begins with `accepted` of `judged` levels."""
        self._kept = kept
        self._accepted, self._judged = accepted, judged
        self._declined, self._interval = 0, self._SELDOM[0]

    @property
    def chance(self) -> float:
        return self._accepted / self._judged

    @property
    def due(self) -> bool:
        return self._declined >= self._interval

    def judged(self, accepted: int, levels: int) -> None:
        """Learn from a verdict: `accepted` of `levels`; levels below the first rejection were not judged."""
        if accepted:
            self._interval = self._SELDOM[0]
        elif self.due:
            self._interval = min(2 * self._interval, self._SELDOM[1])
        self._declined = 0
        self._accepted = self._kept * self._accepted + accepted
        self._judged = self._kept * self._judged + min(accepted + 1, levels)

    def declined(self) -> None:
        """A draft was at hand and left alone."""
        self._declined += 1


class Arrivals:
    """When the next draft comes: delays from a commit to the first draft that follows it, as far as it kept us waiting.

    Drafts that came ahead of their commit are no delays: what is asked is how long to wait where none did.
    """

    _KEPT = 16
    _LEAST = 2
    _LATE = 1.05
    """A draft is taken to need so much longer than one before it: the deadline must not fall just ahead of it."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=self._KEPT)
        self._open: list[tuple[int, float]] = []

    def clear(self) -> None:
        """A step begins: no commit waits for its draft."""
        self._open.clear()

    def committed(self, position: int, in_hand: bool, now: float) -> None:
        """A commit up to answer position `position` left; `in_hand`: a draft behind it was there already."""
        if in_hand:
            self._open.clear()
        else:
            self._open.append((position, now))

    def came(self, start: int, usable: bool, now: float) -> None:
        """A draft for answer position `start` arrived; it answers the latest commit that it can know of."""
        answered = [at for position, at in self._open if position <= start]
        if answered:
            self._delays.append(now - answered[-1])
        self._open = [] if usable else [each for each in self._open if each[0] > start]

    def remaining(self, now: float) -> list[float]:
        """Return, sorted, how much longer each remembered delay would still last; nothing where none is awaited.

        Shorter ones have passed: an overdue draft leaves few, in the end none.
        """
        if not self._open or len(self._delays) < self._LEAST:
            return []
        waited = now - self._open[0][1]
        left = (self._LATE * delay - waited for delay in self._delays)
        return sorted(each for each in left if each > TICK_S)


class Pace:
    """Tokens per second that a session gets, and what its acts leave behind.

    Cycles last from commit to commit, waits included. An edge that drafts ahead has its next draft at hand after its
    own was verified, and not where the verifier has drafted by itself. So an act is judged with the cycle after it: by
    its *advantage*, the tokens beyond those that the pace makes of its seconds (average reward; Howard 1960). In a
    batch the pace is that of the session, the others' passes included.
    """

    _KEPT = 0.97
    _LENT = 8.0
    """An act begins with as many cycles of no advantage after it."""

    def __init__(self) -> None:
        self._all = (0.0, 0.0)
        self._after: dict[str, tuple[float, float, float]] = {}
        """By act: tokens, seconds and number of the cycles after it."""
        self._last: tuple[str, float] | None = None

    def clear(self) -> None:
        """A step begins: its first pass follows nothing."""
        self._last = None

    def committed(self, act: str, tokens: int, now: float) -> None:
        """A pass has committed so many tokens now."""
        if self._last is not None:
            before, at = self._last
            cycle = float(tokens), now - at
            self._all = (self._KEPT * self._all[0] + cycle[0], self._KEPT * self._all[1] + cycle[1])
            sums = self._after.get(before, (0.0, 0.0, 0.0))
            each = zip(sums, (*cycle, 1.0), strict=True)
            old, new, number = (self._KEPT * sum_ + value for sum_, value in each)
            self._after[before] = old, new, number
        self._last = act, now

    def forget(self, act: str) -> None:
        """What followed an act that was not taken fades."""
        tokens, seconds, number = self._after.get(act, (0.0, 0.0, 0.0))
        self._after[act] = self._KEPT * tokens, self._KEPT * seconds, self._KEPT * number

    def rate(self, own: Part) -> float:
        """Return the tokens per second of the latest cycles, those of drafting here at least."""
        tokens, seconds = self._all
        return max(own.rate, (tokens + self._LENT * own.tokens) / (seconds + self._LENT * own.seconds))

    def advantage(self, act: str, part: Part, rate: float) -> float:
        """Return the tokens that an act and the cycle after it bring beyond the `rate`."""
        tokens, seconds, number = self._after.get(act, (0.0, 0.0, 0.0))
        return part.tokens - rate * part.seconds + (tokens - rate * seconds) / (number + self._LENT)
