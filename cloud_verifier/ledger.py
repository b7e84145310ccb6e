"""Ledger: what a session's idle verifier does next: verify the draft at hand, decode one token alone, or wait a little.

It takes what commits most tokens per second by its estimates, and spends only *credit*: the lead, in tokens, that the
step has over decoding alone. So a step is never more than one plain decode behind, whatever link and draft do.

Terms: T_d a pass that decodes alone, T_v one that verifies; a the chance of one more accepted draft token, E(k) =
1 + a + ... + a^k the tokens that a draft k deep commits (Leviathan et al., arXiv 2211.17192, Eq. 1). Times are seconds
on one clock that is given; no torch, no socket.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cloud_verifier.survival import Survival
from cloud_verifier.tree import NOTHING, Tree
from speculation.acceptance import expected_tokens
from speculation.pass_cost import NO_LOAD, Load

PASS_PRICE = 0.5
"""Tokens that one more target forward must bring before it is preferred to waiting; docs/verifier.md has the reason."""
_TICK_S = 1e-6
"""Shortest time that is counted with: a clock may stand still, and a wait must end."""
_SLACK = 1e-9
"""Rounding of sums of tokens."""
_WHOLE = 0.98
"""A draft is verified whole where that brings at least so much of what its best part would."""
_TRIES = 2
"""How many verifications of one token a lost stake must leave room for: a step that has none left can only decode."""


class Act(str, Enum):
    """What to do with a step."""

    VERIFY = "verify"
    """Verify a draft of the edge."""
    HINT = "hint"
    """Verify what followed in an earlier answer."""
    SELF = "self"
    """Verify a draft of the verifier's own draft model."""
    DECODE = "decode"
    """Decode one token."""
    WAIT = "wait"
    """Wait for a draft of the edge."""


@dataclass(frozen=True)
class Choice:
    """What a step does next."""

    act: Act
    tree: Tree = NOTHING
    """What to verify."""
    until: float = 0.0
    """When a WAIT must be decided again."""
    declined: tuple[Act, ...] = ()
    """What was at hand and not taken."""


class Estimates(Protocol):
    """Predicted seconds of a pass; see `cloud_verifier.estimator.Estimator`."""

    @property
    def known(self) -> bool: ...

    @property
    def spread(self) -> float: ...

    def seconds(self, load: Load) -> float: ...


class Acceptance:
    """Chance that the target accepts one more level of a draft: a running share, begun at one half with little weight.

    What does not pay is left alone and so never judged; a try is due now and then, ever more rarely, because acceptance
    may recover.
    """

    _KEPT = 0.95
    _SELDOM = (16, 256)

    def __init__(self) -> None:
        self._accepted, self._judged = 0.5, 1.0
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
        self._accepted = self._KEPT * self._accepted + accepted
        self._judged = self._KEPT * self._judged + min(accepted + 1, levels)

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
        return sorted(each for each in left if each > _TICK_S)


class Ledger:
    """One session's estimates, and the account of its current step. `pass_price` in tokens, see `PASS_PRICE`."""

    def __init__(self, estimates: Estimates, pass_price: float = PASS_PRICE) -> None:
        self._estimates = estimates
        self._price = pass_price
        self._drafts, self._hints = Acceptance(), Acceptance()
        self.survival = {Act.VERIFY: Survival(), Act.HINT: Survival()}
        """Of the edge's draft tokens and of hints; for policies."""
        self._arrivals = Arrivals()
        self._depth = 1.0
        self._prompt = 0
        self._committed = 0
        self._plain = 0.0
        self._waiting_since: float | None = None

    # --- the account: what decoding alone would have by now, and what is there

    def begin(self, cached: int = 0) -> None:
        """Open the account of a step, which may decode from now on, behind so many tokens in the cache."""
        self._prompt = cached
        self._committed, self._plain, self._waiting_since = 0, 0.0, None
        self._arrivals.clear()

    def pause(self) -> None:
        """The edge is gone or back: no wait is under way."""
        self._waiting_since = None

    @property
    def waits(self) -> bool:
        """Whether a wait is noted."""
        return self._waiting_since is not None

    def wait(self, now: float) -> None:
        """The step waits for a draft, from now on or since an earlier call; `start` ends the wait."""
        if self._waiting_since is None:
            self._waiting_since = now

    def credit(self, now: float) -> float:
        """Return the lead over decoding alone in tokens; negative where the step is behind."""
        waited = 0.0 if self._waiting_since is None else max(0.0, now - self._waiting_since)
        return self._committed - self._plain - waited * self._caution / self._decode_s

    def draft_came(self, start: int, usable: bool, depth: int, now: float) -> None:
        """Learn from a draft for answer position `start`, `depth` levels deep; `usable`: it continues the answer."""
        self._arrivals.came(start, usable, now)
        self._depth += 0.25 * (depth - self._depth)

    def start(self, choice: Choice, now: float) -> float:
        """A pass for this step begins. Returns the seconds that were waited for a draft before it.

        At most one plain decode stays on the account: a deadline that was missed because the machine ran other steps is
        not charged.
        """
        waited = 0.0 if self._waiting_since is None else max(0.0, now - self._waiting_since)
        self._plain = min(self._committed - self.credit(now), self._committed + 1.0)
        self._waiting_since = None
        for act in choice.declined:
            (self._hints if act is Act.HINT else self._drafts).declined()
        return waited

    def finish(self, act: Act, tree: Tree, accepted: int, committed: int, beside: Load = NO_LOAD) -> None:
        """Enter a pass: `accepted` levels of `tree`, `committed` tokens; `beside`: what other sessions fed in it.

        It is charged by what it cost over a pass in which this session had decoded alone. The time of others' passes
        is not charged: decoding alone would have waited for them as well.
        """
        loads = self._load(1) + beside, self._load(1 + len(tree.tokens)) + beside
        self._committed += committed
        self._plain += 1.0
        if not tree.tokens or act is Act.SELF:
            return
        alone, shared = map(self._estimates.seconds, loads)
        ratio = shared / alone if alone > _TICK_S else 1.0
        self._plain += max(0.0, ratio - 1.0) * self._caution
        (self._hints if act is Act.HINT else self._drafts).judged(accepted, tree.levels[-1])

    def committed(self, position: int, in_hand: bool, now: float) -> None:
        """A commit up to answer position `position` left; `in_hand`: a draft is there to go on with."""
        self._arrivals.committed(position, in_hand, now)

    # --- the choice

    @property
    def drafts_pay(self) -> bool:
        """Whether a draft like the latest ones would commit more per second than decoding alone."""
        return self._expected() is not None

    def choose(self, draft: Tree | None, hint: Tree | None, now: float) -> Choice:
        """Return what to do now with the best current draft and a hint, if there are any.

        A draft that pays is verified, as much of it as pays and as the account allows. Where there is none the step
        waits for as long as that is worth it, else it verifies the hint where that pays, else it decodes. A query: a
        step that waits is noted by `wait`.
        """
        if not self._estimates.known:
            return Choice(Act.DECODE)
        if draft is not None:
            if not draft.tokens:
                return Choice(Act.VERIFY, draft)
            size = self._stake(draft, self._drafts, now)
            if size:
                return Choice(Act.VERIFY, draft.head(size))
        declined = (Act.VERIFY,) if draft is not None else ()
        size = self._stake(hint, self._hints, now) if hint is not None else 0
        if hint is not None and size:
            alone = Choice(Act.HINT, hint.head(size), declined=declined)
        else:
            alone = Choice(Act.DECODE, declined=declined if hint is None else (*declined, Act.HINT))
        wait = self._wait(alone, now) if draft is None else 0.0
        if wait <= 0.0:
            return alone
        return Choice(Act.WAIT, until=now + wait)

    def _stake(self, tree: Tree, acceptance: Acceptance, now: float) -> int:
        """Return how many of the tree's first tokens to verify now; 0 where decoding alone is better or all is spent.

        A pass may begin if it ends before decoding alone is two tokens ahead: now + T_v <= t0 + (N + 2) T_d. More than
        one token is staked only as far as its loss leaves `_TRIES` tries, each of which may cost T_v(1) - T_d more.
        """
        limit = (1.0 + (self.credit(now) + 1.0 + _SLACK) / self._caution) * self._decode_s
        least = self._seconds(2)
        kept = _TRIES * max(0.0, least - self._decode_s)
        size, _, _ = self._best(tree.levels, acceptance.chance, max(limit - kept, min(least, limit)))
        return size or int(acceptance.due and least <= limit)

    def _best(self, levels: Sequence[int], chance: float, limit: float = math.inf) -> tuple[int, float, float]:
        """Return tokens, E and T_v of the largest part of a draft about as good as the best one, within `limit` s.

        No tokens where the best does not beat decoding alone: E(k)/T_v <= 1/T_d.
        """
        decode = self._decode_s
        parts = [(0, 1.0, decode)]
        for size in range(1, len(levels)):
            seconds = max(decode, self._seconds(1 + size))
            if seconds > limit:
                break
            parts.append((size, expected_tokens(chance, levels[size]), seconds))
        best = max(tokens / seconds for _, tokens, seconds in parts)
        if best <= (1.0 + _SLACK) / decode:
            return parts[0]
        return next(part for part in reversed(parts) if part[1] / part[2] >= _WHOLE * best)

    def _expected(self) -> tuple[int, float, float] | None:
        """Return depth, E and T_v of the draft that comes next, None where it will not pay."""
        best = self._best(range(1 + max(1, round(self._depth))), self._drafts.chance)
        return best if best[0] else None

    def _wait(self, alone: Choice, now: float) -> float:
        """Return how many seconds to wait for a draft at most; 0 to go on alone at once.

        A renewal-reward comparison of all deadlines d that a remembered delay suggests: with P = P(X <= d) for the
        draft's remaining delay X, a cycle commits P E + (1 - P) G tokens in E[min(X, d)] + P T_v + (1 - P) H seconds
        and P + (1 - P) n passes, where going on alone commits G in H seconds and n passes (`_alone`). Of them the best
        has the most (tokens - price x passes) per second; d = 0 is going on at once, and "never" is one more
        remembered delay. None may be slower than decoding alone, whatever the price.
        Waiting must be paid from credit: even if nothing is accepted the step must not be behind after it,
        now + d + T_v <= t0 + (N + 1) T_d.
        """
        delays, expected = self._arrivals.remaining(now), self._expected()
        if not delays or expected is None:
            return 0.0
        _, tokens, verify_s = expected
        longest = (self.credit(now) + 1.0 + _SLACK) * self._decode_s / self._caution - verify_s
        count = len(delays) + 1
        cycle = self._alone(alone.tree, expected)
        best, best_value = 0.0, -math.inf
        for deadline in [0.0, *(delay for delay in dict.fromkeys(delays) if delay <= longest)]:
            late = [delay - deadline for delay in delays if delay > deadline] + [math.inf]
            came = 1.0 - len(late) / count
            reward, seconds, passes = (sum(column) / count for column in zip(*map(cycle, late), strict=True))
            reward += came * tokens
            seconds += came * verify_s + sum(min(delay, deadline) for delay in [*delays, math.inf]) / count
            value = (reward - self._price * (passes + came)) / seconds
            as_fast = reward * self._decode_s >= seconds * (1.0 - _SLACK)
            if value > best_value and (as_fast or not deadline):
                best, best_value = deadline, value
        return best

    def _alone(self, tree: Tree, expected: tuple[int, float, float]) -> Callable[[float], tuple[float, float, float]]:
        """Return a function of the draft's delay: tokens, seconds and passes of going on alone until it comes.

        With g tokens in T seconds it does so in n = ceil(delay/T) passes, after which the draft is still usable with
        p = a^(n g): n g + p E(k - n g) tokens in n T + p T_v seconds. A draft that comes too late for that does not
        count.
        """
        depth, _, verify_s = expected
        chance = self._drafts.chance
        gained = expected_tokens(self._hints.chance, tree.levels[-1])
        alone_s = max(_TICK_S, self._seconds(1 + len(tree.tokens)))
        cycles = []
        for count in range(1, int(depth / gained) + 1):
            usable = chance ** (count * gained)
            tokens = count * gained + usable * expected_tokens(chance, depth - round(count * gained))
            cycles.append((tokens, count * alone_s + usable * verify_s, count + usable))
        never = (gained, alone_s, 1.0)

        def cycle(delay: float) -> tuple[float, float, float]:
            passes = delay / alone_s
            return cycles[max(0, math.ceil(passes) - 1)] if passes <= len(cycles) else never

        return cycle

    def _load(self, tokens: int) -> Load:
        """Return what feeding so many tokens now computes."""
        return Load.row(tokens, self._prompt + self._committed)

    def _seconds(self, tokens: int) -> float:
        return self._estimates.seconds(self._load(tokens))

    @property
    def _decode_s(self) -> float:
        return max(_TICK_S, self._seconds(1))

    @property
    def _caution(self) -> float:
        """Ratio of a slow pass to a fast one: what is spent beyond a plain decode is multiplied by it."""
        return 1.0 + self._estimates.spread
