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
        self._any = False
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
        self._any = True
        answered = [at for position, at in self._open if position <= start]
        if answered:
            self._delays.append(now - answered[-1])
        self._open = [] if usable else [each for each in self._open if each[0] > start]

    @property
    def soon_s(self) -> float | None:
        """A short delay: three of four are longer; 0 where all drafts came ahead, None where none ever came."""
        if not self._delays:
            return 0.0 if self._any else None
        return sorted(self._delays)[len(self._delays) // 4]

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

    What an edge brings that nobody interrupts, single acts do not show. So there are *phases* in which it leads and
    nothing is drafted here: one ends where it has fallen too far behind the pace of the cycles before it, or after many
    cycles, and the next try is the rarer for it where it failed soon.
    """

    _KEPT = 0.97
    _LENT = 8.0
    """An act begins with as many cycles of no advantage after it."""

    _SELDOM, _RARER = 16, 4
    """Cycles between phases, and how much longer after one that failed."""
    _MOST, _LEAST = 16.0, -12.0
    """Tokens of lead that a phase can have, and at which it ends."""
    _LONGEST = 128
    """Cycles of a phase: the pace that it is measured by grows old."""

    def __init__(self) -> None:
        self.edge_leads = False
        """Whether it is a phase in which nothing is drafted here."""
        self._lead, self._cycles, self._interval = 0.0, 0, self._SELDOM
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
            self._cycles += 1
            if self.edge_leads:
                self._lead = min(self._MOST, self._lead + tokens - self._measured * cycle[1])
                if self._lead < self._LEAST or self._cycles >= self._LONGEST:
                    paid = self._cycles > 2 * self._SELDOM
                    self._interval = self._SELDOM if paid else self._RARER * self._interval
                    self.edge_leads, self._cycles = False, 0
                self._last = act, now
                return
            self._all = (self._KEPT * self._all[0] + cycle[0], self._KEPT * self._all[1] + cycle[1])
            sums = self._after.get(before, (0.0, 0.0, 0.0))
            each = zip(sums, (*cycle, 1.0), strict=True)
            old, new, number = (self._KEPT * sum_ + value for sum_, value in each)
            self._after[before] = old, new, number
        self._last = act, now

    def try_edge(self, rate: float) -> None:
        """Begin a phase if it is time for one and so many tokens per second, which the edge's drafts promise, are more
        than the pace."""
        if not self.edge_leads and self._cycles >= self._interval and rate > self._measured:
            self.edge_leads, self._lead, self._cycles = True, 0.0, 0

    @property
    def _measured(self) -> float:
        tokens, seconds = self._all
        return tokens / max(TICK_S, seconds)

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
