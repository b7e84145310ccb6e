"""Decides whether a draft forward, and drafting for a step at all, is worth its processor time.

A draft forward costs T_p seconds of the processor. It is of use where the answer passes through one of the leaves that
it feeds and goes on with a token that was not there before. With R the chance that the answer passes through a leaf
(its reach) and q that of the children that it has already, R (1 - q) is what is hoped of a leaf. What is hoped far
behind the root comes true more rarely than near it, so the share of it that did is counted by depth, c(d), from every
proposal that was committed or became impossible, and the chance of use is

    u = sum over leaves of c(d) R (1 - q).

A token that stands saves what a token takes at present: S, the time between commits over the tokens that they bring.
In a round that waits for the edge that is the draft forward's own time and more; in one that waits for the verifier it
is its part of a pass. With `interrupt` no commit waits for the forward. So its gain is u S seconds and its cost p T_p,
where p = 1 - `DraftingConfig.effort` is the price of a second of the processor: at p = 0 the edge drafts wherever that
may be of use, at p = 1 only what saves more time than it takes, which is the real price where edge and verifier share
their cores. A forward runs where

    u S >= p T_p.

What is covered already (q near 1), what the next verdict will hardly reach (c small) and what the answer will hardly
pass through (R small) is left alone by the one rule. T_p is the running average of the latest forwards, so that it
follows what else runs on the edge's cores. Where the prefill found that the verifier shares them (`Effort.crowded`) p
is 1, unless nothing is to be declined: while a forward runs there a pass of the target stands still.

A draft that is never accepted has c near 0, so that nothing is worth its forward. Acceptance may recover: a forward is
tried after `SELDOM[0]` commits without any, and after twice as many each time that nothing of it stood, at most
`SELDOM[1]`: T_p / (16 S) of the time at first, T_p / (256 S) later.

What no single forward shows, such as the prefill on the edge or cores that both sides share, a whole step does: seconds
a token with drafts are compared with those of steps in which the edge does not draft (the verifier has its hints even
then). A step without drafts is tried only where drafting is not `SURE` times as fast as passes of one token would be:
after the first step, then every `STEPS[0]` steps and ever more rarely, at most every `STEPS[1]`. So a try takes at most
`SURE` times its step, and all of them together at most (`SURE` - 1) / `STEPS[0]` of the time, at first. The same holds
for drafting, where not drafting is faster.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge_drafter.stats import DecodingStats
from edge_drafter.tree import Node

_RISES = 0.01
"""The shortest pass of late grows by this share of each new one, so that it is forgotten."""
SELDOM = (16, 256)
"""Commits between forwards that are tried though they are not worth it: at first, and at most."""
STEPS = (8, 128)
"""Steps between tries of the slower way to decode one: at first, and at most."""
SURE = 1.5
"""A prefill beside that of the edge, on the same cores, may take twice as long as without."""
GAIN = 0.98
"""Drafting for a step must take less than this share of the time without."""
_KEPT = 0.98
"""How much of the past time and tokens weighs after one more commit."""
_HOPES_KEPT = 0.95
"""How much of the past hopes weighs after one more commit. Not after one more hope: a commit fulfils a few at a time, a
rejection ends dozens at once, and behind it hardly any other would weigh."""
_BINS = 5
"""Groups of levels behind the root: 1, 2 and 3, 4 to 7, 8 to 15, and more."""


class Effort:
    """Decides what is drafted; it outlives the step. Seconds are those of the clock that the step is timed with."""

    def __init__(self, effort: float = 1.0) -> None:
        """`effort`: from 0, each second of drafting must save one, to 1, it costs nothing and nothing is declined."""
        self._price = 1.0 - effort
        self.crowded = False
        """Whether edge and verifier have to share a processor."""
        self._stood, self._hoped = [1.0] * (_BINS + 1), [1.0] * (_BINS + 1)
        self._seconds = self._tokens = 0.0
        self._idle_commits, self._interval = 0, SELDOM[0]
        self._is_try = False
        self._pace: dict[bool, float] = {}
        """Time of steps with drafts and without, as a share of their prefill and passes of one token."""
        self._prefill_s = 0.0
        """The verifier's shortest prefill of late."""
        self._since, self._between = 0, STEPS[0]
        """Steps since the latest try of the slower way, and until the next."""
        self._pass_s: float | None = None
        """The shortest pass of late."""
        self._is_sure = True

    # --- a forward

    @property
    def is_free(self) -> bool:
        """Whether drafting costs nothing, so that no forward is declined."""
        return self._price <= 0.0

    @property
    def token_s(self) -> float | None:
        """S: seconds a committed token takes at present; None before the first commit."""
        return self._seconds / self._tokens if self._tokens else None

    def share(self, ahead: int) -> float:
        """Return which share of the chance that a proposal `ahead` levels behind the root was hoped to have it had."""
        place = min(ahead.bit_length(), _BINS)
        return min(1.0, self._stood[place] / self._hoped[place])

    def use(self, places: Iterable[tuple[int, float]]) -> float:
        """Return u, how many committed tokens a forward is expected to bring; `places` as in `is_worth`."""
        return sum([hoped * self.share(ahead) for ahead, hoped in places])

    def is_worth(self, places: Iterable[tuple[int, float]], forward_s: float | None) -> bool:
        """Whether a forward of `forward_s` should run.

        It proposes a token at each of `places`, so many levels behind the root, and the answer goes on with a new one
        there with such a chance. What was not measured yet is taken to be worth it.
        """
        if self.is_free or forward_s is None or not self._tokens or self._idle_commits >= self._interval:
            return True
        price = 1.0 if self.crowded else self._price
        return self.use(places) * self._seconds >= price * forward_s * self._tokens

    def ran(self) -> None:
        """Note that a forward ran."""
        self._is_try = self._idle_commits >= self._interval
        self._idle_commits = 0

    def resolved(self, nodes: Iterable[Node], stood: bool) -> None:
        """Take nodes that were committed, or became impossible."""
        decided: dict[int, list[float]] = {}
        for node in nodes:
            if (proposed := node.proposed) is not None:
                decided.setdefault(min(proposed.ahead.bit_length(), _BINS), []).append(proposed.hoped)
        for place, hoped in decided.items():
            self._stood[place] = _HOPES_KEPT * self._stood[place] + stood * len(hoped)
            self._hoped[place] = _HOPES_KEPT * self._hoped[place] + sum(hoped)
        if stood and decided:
            self._interval, self._is_try = SELDOM[0], False
        if not stood and self._is_try:
            self._interval, self._is_try = min(2 * self._interval, SELDOM[1]), False

    def committed(self, tokens: int, seconds: float, pass_s: float) -> None:
        """Take a commit of `tokens`, `seconds` after the one before, with a pass of `pass_s`; 0 without one."""
        if pass_s > 0.0:
            self._pass_s = pass_s if self._pass_s is None else min(pass_s, self._pass_s + _RISES * pass_s)
        self._seconds = _KEPT * self._seconds + seconds
        self._tokens = _KEPT * self._tokens + tokens
        self._idle_commits += 1
        # A depth that nothing is drafted at any more could never show that it is worth it again.
        for place in range(2, _BINS + 1):
            nearer = min(1.0, self._stood[place - 1] / self._hoped[place - 1]) * self._hoped[place]
            self._stood[place] += (1.0 - _KEPT) * max(0.0, nearer - self._stood[place])

    # --- a step

    @property
    def drafts(self) -> bool:
        """Whether the edge should draft for the next step: the faster way, or the other one where a try is due."""
        if self.is_free or True not in self._pace:
            return True
        is_due = False not in self._pace or self._since >= self._between
        return self._pays is not (is_due and not (self._pays and self._is_sure))

    def answered(self, stats: DecodingStats, drafted: bool) -> None:
        """Take the figures of a complete step, or of one that was too late, that was `drafted` for, or not."""
        if not stats.tokens or self._pass_s is None:
            return
        if stats.server_prefill_s > 0.0:
            longest = self._prefill_s + _RISES * stats.server_prefill_s if self._prefill_s else stats.server_prefill_s
            self._prefill_s = min(stats.server_prefill_s, longest)
        alone = self._prefill_s + max(1, stats.tokens - 1) * self._pass_s  # the prefill commits the first token itself
        pays, known = self._pays, self._pace.get(drafted)
        pace = stats.total_s / alone
        self._pace[drafted] = pace if known is None else known + 0.25 * (pace - known)
        if drafted is pays:
            self._since += 1
        else:
            self._since, self._between = 0, STEPS[0] if self._pays is not pays else min(2 * self._between, STEPS[1])
        if drafted:
            self._is_sure = SURE * stats.total_s <= alone

    @property
    def _pays(self) -> bool:
        return False not in self._pace or self._pace.get(True, 0.0) <= GAIN * self._pace[False]
