"""Ledger: what a session's idle verifier does next: verify the draft at hand, decode one token alone, draft by itself
where a draft model stands beside the target, or wait a little.

It takes what commits most tokens per second by its estimates, and spends only *credit*: the lead, in tokens, that the
step has over decoding alone. So a step is never more than one plain decode behind, whatever link and drafts do, those
that are made here among them: their forwards, and the draft model's prefill, are paid from the same account. Where the
steps before it ended far ahead it is lent a token more, so that it can wait for its first draft (`Ledger.lent`).

Terms: T_d a pass that decodes alone, T_v one that verifies, E the tokens that a pass over a draft is expected to
commit. Times are seconds on one clock that is given; no torch, no socket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cloud_verifier.acceptance_stats import AcceptanceStats, PassVerdict, TokenAcceptance
from cloud_verifier.choice import Act, Choice
from cloud_verifier.estimator import Costs
from cloud_verifier.server_draft.value import OWN_DEPTH, OWN_TOKENS
from cloud_verifier.tree import Tree
from speculation.pass_cost import NO_LOAD, Load
from speculation.wire import ROOT

PASS_PRICE = 0.5
"""Tokens that one more target forward must bring before it is preferred to waiting; docs/serving.md has the reason."""
TICK_S = 1e-6
"""Shortest time that is counted with: a clock may stand still, and a wait must end."""
MOST_LENT, LENT_SHARE = 1.0, 0.25
"""Credit that a step begins with: tokens at most, and as a share of the lead with which the steps before it ended."""
_SLACK = 1e-9
"""Rounding of sums of tokens."""
_WHOLE = 0.98
"""A draft is verified whole where that brings at least so much of what its best part would."""
_TRIES, _OWN_TRIES = 2, 3
"""How many verifications of one token a lost stake must leave room for: a step that has none left can only decode. Of
the verifier's own drafts, which may be all that a step ever has, more."""


class Part(NamedTuple):
    """A part is what a pass over the first `size` tokens of a draft, or over a draft so deep, brings and takes."""

    size: int
    tokens: float
    """Tokens E that it commits."""
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


Worth = Callable[[float], float]
"""What waiting until a deadline, in seconds from now, is worth."""


class Ledger:
    """One session's estimates, and the account of its current step. `pass_price` in tokens, see `PASS_PRICE`."""

    def __init__(self, costs: Costs, pass_price: float = PASS_PRICE, own_tokens: int = OWN_TOKENS) -> None:
        """`own_tokens`: most tokens of a draft that is made beside the target, where `costs` has a draft model."""
        self._estimates = costs.passes
        self._price = pass_price
        self._drafting, self._own_tokens = costs.drafts, own_tokens
        self.stats = AcceptanceStats()
        self._min_tokens_per_s = 0.0
        """Price of a second of the pass under way, in tokens, where it drafts here."""
        self._usual = 0.0
        """Mean tokens of the session's answers."""
        self._lead = 0.0
        """With how many tokens of lead steps end, at least: a low one counts at once, a high one slowly."""
        self._prompt = 0
        self._committed = 0
        self._plain = 0.0
        self._waiting_since: float | None = None

    # --- the account: what decoding alone would have by now, and what is there

    def begin(self, cached: int = 0) -> None:
        """Open the account of a step, which may decode from now on, behind so many tokens in the cache."""
        if self._committed:
            lead = self._committed - self._plain
            self._lead += (1.0 if lead < self._lead else 0.25) * (lead - self._lead)
            self._usual += (0.25 if self._usual else 1.0) * (self._committed - self._usual)
        self._prompt = cached
        self._committed, self._plain, self._waiting_since = 0, 0.0, None
        self.stats.delays.clear()
        self.stats.throughput.clear()

    def pause(self) -> None:
        """The edge is gone or back: no wait is under way."""
        self._waiting_since = None
        self.stats.throughput.clear()

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
        return self._committed - self._plain - self._waited(now) * self._caution / self._decode_s

    def _waited(self, now: float) -> float:
        """Return the seconds of the wait that is under way."""
        return 0.0 if self._waiting_since is None else max(0.0, now - self._waiting_since)

    def start(self, choice: Choice, now: float) -> float:
        """A pass for this step begins. Returns the seconds that were waited for a draft before it.

        At most one plain decode, and what was lent, stays on the account: a deadline that was missed because the
        machine ran other steps is not charged.
        """
        waited = self._waited(now)
        self._plain = min(self._committed - self.credit(now), self._committed + 1.0 + self.lent)
        self._waiting_since, self._min_tokens_per_s = None, choice.min_tokens_per_s
        return waited

    def charge(self, seconds: float) -> None:
        """Enter seconds that the draft model beside the target spent on this step, other than on a draft."""
        self._plain += seconds / self._decode_s * self._caution

    def further(self, tree: Tree, spent_s: float, forward_s: float, now: float) -> float:
        """Return the tokens that one level more would add to the draft that is being made for this step, less those
        that the seconds of verifying it are worth.

        It has taken `spent_s` so far and would take `forward_s` more; 0 where the account does not allow that.
        """
        depth = tree.levels[-1]
        now_s, then_s = (
            max(self._decode_s, self._seconds(1 + self.stats.server_draft.tokens(levels, self._own_tokens)))
            for levels in (depth, depth + 1)
        )
        if spent_s + forward_s + then_s > self._limit(now) - self._own_tries_s:
            return 0.0
        return self.stats.server_draft.further(tree) - self._min_tokens_per_s * (then_s - now_s)

    def drafting_s(self, levels: int) -> float | None:
        """Return the seconds that a draft of so many levels takes here; None where none was made yet."""
        return self._drafting.forwards_s(levels) if self._drafting is not None else None

    def drafted(self, tree: Tree, seconds: float, now: float) -> Tree:
        """A draft of the verifier's own was made for this step in so many seconds, which are charged.

        Returns as much of it as commits most per second, drafting included, and as the account allows; of equally good
        parts the largest.
        """
        self.stats.server_draft.drafted(tree)
        self.charge(seconds)
        limit, least = self._limit(now), self._seconds(2)
        kept = max(limit - self._own_tries_s, min(least, limit))
        part = self._best(self.stats.server_draft.expected(tree), kept, seconds, whole=1.0)
        return tree.head(max(part.size, int(least <= limit)))

    def finish(self, verdict: PassVerdict, beside: Load = NO_LOAD) -> None:
        """Enter the outcome of a pass in which other sessions fed `beside`.

        It is charged by what it cost over a pass in which this session had decoded alone. The time of others' passes
        is not charged: decoding alone would have waited for them as well.
        """
        drafted = len(verdict.tree.tokens)
        alone, shared = self._load(1) + beside, self._load(1 + drafted) + beside
        self._committed += len(verdict.committed)
        self._plain += 1.0
        self.stats.on_verdict(verdict)
        if drafted:
            alone_s, shared_s = self._estimates.seconds(alone), self._estimates.seconds(shared)
            ratio = shared_s / alone_s if alone_s > TICK_S else 1.0
            self._plain += max(0.0, ratio - 1.0) * self._caution

    # --- the choice

    @property
    def drafts_pay(self) -> bool:
        """Whether a draft like the latest ones would commit more per second than decoding alone."""
        return self._best(self._next_gains()).size > 0

    def choose(
        self, draft: Tree | None, hint: Tree | None, now: float, room: int = 0, prefilled: bool = True
    ) -> Choice:
        """Return what to do now with the best current draft and a hint, if there are any.

        A draft that pays is verified, as much of it as pays and as the account allows, unless a draft of the
        verifier's own commits more per second: `room` is how many levels that may have, 0 where there can be none, and
        `prefilled` whether the draft model knows the prompt. Where there is no draft the step waits for as long as that
        is worth it, else it does what commits most per second: it drafts by itself, verifies the hint, or decodes. A
        query: a step that waits is noted by `wait`.
        """
        if not self._estimates.known:
            return Choice(Act.DECODE)
        own = self._own_draft(room, prefilled, now)
        declined: tuple[Act, ...] = ()
        if draft is not None:
            if not draft.tokens:
                return Choice(Act.VERIFY, draft)
            part = self._stake(draft, self.stats.edge, now)
            if part.size and (own is None or self._beats(part, own)):
                declined = (Act.SELF,) if room and self._drafting is not None else ()
                return Choice(Act.VERIFY, draft.head(part.size), gain=part.tokens, declined=declined)
        declined = (Act.VERIFY,) if draft is not None else ()
        part = self._stake(hint, self.stats.hints, now) if hint is not None else Part(0, 1.0, self._decode_s)
        if own is not None and own.rate > part.rate:
            alone = self._draft_here(own, room, declined)
            part = own
        else:
            declined += (Act.SELF,) if room and self._drafting is not None else ()
            if hint is not None and part.size:
                alone = Choice(Act.HINT, hint.head(part.size), gain=part.tokens, declined=declined)
            else:
                alone = Choice(Act.DECODE, declined=declined if hint is None else (*declined, Act.HINT))
        wait = self._wait(part, alone.act, now) if draft is None else 0.0
        if wait <= 0.0:
            return alone
        return Choice(Act.WAIT, until=now + wait)

    def _draft_here(self, own: Part, room: int, declined: tuple[Act, ...]) -> Choice:
        """Return the choice of a draft by itself: as deep as it pays, which is known best while it is made."""
        assert self._drafting is not None, "only a draft model drafts here"
        return Choice(
            Act.SELF, size=self._own_tokens, depth=min(room, OWN_DEPTH), gain=own.tokens, declined=declined,
            drafting_s=self._drafting.forwards_s(own.size) or 0.0, min_tokens_per_s=self._worth_of_a_second(own),
        )  # fmt: skip

    def _beats(self, part: Part, own: Part) -> bool:
        """Whether verifying this part of an edge's draft gains more over the step's usual pace than drafting here."""
        rate = self._worth_of_a_second(own)
        return part.tokens - rate * part.seconds >= own.tokens - rate * own.seconds

    def _worth_of_a_second(self, own: Part) -> float:
        """Return the session's tokens per second, begun as those of drafting here."""
        return self.stats.throughput.rate(own.tokens, own.seconds)

    def _limit(self, now: float) -> float:
        """Return how long what begins now may take: it must end before decoding alone is two tokens ahead,
        now + T_v <= t0 + (N + 2) T_d, or what is lent more."""
        return (1.0 + (self.credit(now) + self.lent + 1.0 + _SLACK) / self._caution) * self._decode_s

    @property
    def lent(self) -> float:
        """Tokens of credit that a step begins with where those before it ended far ahead: else it would decode alone
        first, whatever its drafts are worth."""
        return min(MOST_LENT, LENT_SHARE * max(0.0, self._lead))

    def _stake(self, tree: Tree, acceptance: TokenAcceptance, now: float) -> Part:
        """Return what of the tree to verify now; nothing where decoding alone is better or all is spent.

        More than one token is staked only as far as its loss leaves `_TRIES` tries, each of which may cost
        T_v(1) - T_d more, and what tries with drafts of the verifier's own cost.
        """
        limit, least = self._limit(now), self._seconds(2)
        kept = max(_TRIES * max(0.0, least - self._decode_s), self._own_tries_s)
        expected = acceptance.expected(tree.parents)
        part = self._best(expected, max(limit - kept, min(least, limit)))
        if not part.size and acceptance.tries.is_due and least <= limit:
            return Part(1, expected[1], least)
        return part

    def _own_draft(self, room: int, prefilled: bool, now: float) -> Part | None:
        """Return depth, E and seconds, drafting included, of the draft by itself that commits most per second.

        None where none beats decoding alone, and none is due to be tried, as if it were free and right; where the
        account allows none, or none can be made. What the draft model's prefill takes is spread over the rest of an
        answer as long as earlier ones, and must be paid from the account at once.
        """
        costs = self._drafting
        if costs is None or room < 1:
            return None
        prefill_s = 0.0 if prefilled else costs.prefill_s
        if prefill_s is None:
            return None
        decode, limit = self._decode_s, self._limit(now) - prefill_s
        a_try = Part(1, 2.0, decode)
        if costs.forwards_s(1) is None:
            # One level is tried; until it was, a draft forward is taken to last no longer than half a pass.
            return a_try if decode / 2.0 + self._seconds(2) <= limit else None
        kept = limit - self._own_tries_s
        rest = max(1.0, min(room, self._usual - self._committed) if self._usual else room)
        best = None
        for depth, tokens in enumerate(self.stats.server_draft.gains(min(room, OWN_DEPTH)), start=1):
            spent = costs.forwards_s(depth) or 0.0
            seconds = spent + max(decode, self._seconds(1 + self.stats.server_draft.tokens(depth, self._own_tokens)))
            if seconds > (limit if depth == 1 else kept):
                break
            part = Part(depth, tokens, seconds + prefill_s * min(1.0, tokens / rest))
            if best is None or part.rate > best.rate:
                best = part
        if best is None or best.rate * decode > 1.0 + _SLACK:
            return best
        return a_try if self.stats.server_draft.tries.is_due else None

    @property
    def _own_tries_s(self) -> float:
        """Seconds that `_OWN_TRIES` lost drafts of one level cost: a larger one leaves room for so many."""
        costs = self._drafting
        drafting_s = costs.forwards_s(1) if costs is not None else None
        if drafting_s is None:
            return 0.0
        return _OWN_TRIES * max(0.0, drafting_s + self._seconds(2) - self._decode_s)

    def _best(
        self,
        expected: Sequence[float],
        limit: float = math.inf,
        spent: float = 0.0,
        whole: float = _WHOLE,
    ) -> Part:
        """Return the largest part of a draft whose rate is `whole` of the best one's, within `limit` s.

        `expected` are the tokens E that the first 0, 1, 2, ... tokens of the draft commit; `spent` are the seconds
        that it took here. No tokens where the best does not beat decoding alone: E(k)/T_v <= 1/T_d.
        """
        decode = self._decode_s
        parts = [Part(0, 1.0, spent + decode)]
        for size in range(1, len(expected)):
            seconds = max(decode, self._seconds(1 + size))
            if seconds > limit:
                break
            parts.append(Part(size, expected[size], spent + seconds))
        best = max(part.rate for part in parts)
        if best <= (1.0 + _SLACK) * parts[0].rate:
            return parts[0]
        return next(part for part in reversed(parts) if part.rate >= whole * best)

    def _next_gains(self) -> list[float]:
        """Return the tokens E that the first 0, 1, 2, ... levels of the next draft commit if it is as deep as usual."""
        depth = max(1, round(self.stats.depth))
        return self.stats.edge.expected(range(ROOT, depth - 1))

    def _wait(self, alone: Part, act: Act, now: float) -> float:
        """Return how many seconds to wait for a draft at most; 0 to go on alone at once.

        Waiting must be paid from credit: even if nothing is accepted the step must not be behind after it,
        now + d + T_v <= t0 + (N + 1) T_d.
        """
        gains, delays = self._next_gains(), self.stats.delays.remaining(now)
        expected = self._best(gains)
        if not (delays and expected.size):
            return 0.0
        longest = (self.credit(now) + self.lent + 1.0 + _SLACK) * self._decode_s / self._caution - expected.seconds
        if act is Act.SELF:  # nobody knows for how long a robot is late: no longer than a draft here would take
            longest = min(longest, alone.seconds - self._waited(now))
            worth = over_drafting(alone, expected, delays, self._worth_of_a_second(alone))
        else:
            alone = alone._replace(seconds=max(TICK_S, alone.seconds))
            gains = gains[: 1 + expected.size]
            worth = over_decoding(alone, expected, gains, delays, self._price, self._decode_s)
        deadlines: list[float] = [0.0, *(delay for delay in dict.fromkeys(delays) if delay <= longest)]
        return max(deadlines, key=worth)

    def _load(self, tokens: int) -> Load:
        """Return what feeding so many tokens now computes."""
        return Load.row(tokens, self._prompt + self._committed)

    def _seconds(self, tokens: int) -> float:
        return self._estimates.seconds(self._load(tokens))

    @property
    def _decode_s(self) -> float:
        return max(TICK_S, self._seconds(1))

    @property
    def _caution(self) -> float:
        """Ratio of a slow pass to a fast one: what is spent beyond a plain decode is multiplied by it."""
        return 1.0 + self._estimates.spread


# --- what waiting for a robot's next draft is worth, of which a deadline is the longest


def over_drafting(own: Part, expected: Part, delays: Sequence[float], rate: float) -> Worth:
    """Return the worth of a deadline, in seconds from now, where a draft is made beside the target when it passes.

    A deadline of 0 is going on at once. A draft that never comes counts as one more remembered delay.

    A pass is worth its tokens, less what the session makes of the same seconds at its `rate` (average reward; Howard,
    1960). It verifies the `expected` draft where that comes in time, else the verifier's `own`.
    """
    verify, draft = (part.tokens - rate * part.seconds for part in (expected, own))

    def worth(deadline: float) -> float:
        waits = [min(delay, deadline) for delay in (*delays, math.inf)]
        came = sum(delay <= deadline for delay in delays)
        return (came * verify + (len(waits) - came) * draft - rate * sum(waits)) / len(waits)

    return worth


def over_decoding(
    alone: Part, expected: Part, gains: Sequence[float], delays: Sequence[float], price: float, decode_s: float
) -> Worth:
    """Return the worth of a deadline d where the step decodes, or verifies a hint, when it passes.

    d is in seconds from now; 0 is going on at once. A draft that never comes counts as one more remembered delay.

    A renewal-reward comparison: with P = P(X <= d) for the draft's remaining delay X, a cycle commits
    P E + (1 - P) G tokens in E[min(X, d)] + P T_v + (1 - P) H seconds and P + (1 - P) n passes, where going on
    alone commits G in H seconds and n passes (`_alone`). It is worth (tokens - price x passes) per second, but
    nothing where it is slower than decoding alone (`decode_s` a token), whatever the price. `gains` are the tokens that
    the first 0, 1, 2, ... levels of the expected draft commit.
    """
    cycle = _alone(alone, expected, gains)

    def worth(deadline: float) -> float:
        waits = [min(delay, deadline) for delay in (*delays, math.inf)]
        late = [delay - deadline for delay in (*delays, math.inf) if delay > deadline]
        came = 1.0 - len(late) / len(waits)
        reward, seconds, passes = (sum(column) / len(waits) for column in zip(*map(cycle, late), strict=True))
        reward += came * expected.tokens
        seconds += came * expected.seconds + sum(waits) / len(waits)
        if deadline and reward * decode_s < seconds * (1.0 - _SLACK):
            return -math.inf
        value: float = (reward - price * (passes + came)) / seconds
        return value

    return worth


def _alone(alone: Part, expected: Part, gains: Sequence[float]) -> Callable[[float], tuple[float, float, float]]:
    """Return a function of the draft's delay: tokens, seconds and passes of going on alone until it comes.

    With g tokens in T seconds it does so in n = ceil(delay/T) passes, after which the draft is still usable where its
    first n g tokens are right, with probability p: n g + p (1 + tokens accepted behind these) tokens in n T + p T_v
    seconds. A draft that comes too late for that does not count.
    """
    depth = len(gains) - 1
    cycles = []
    for count in range(1, int(depth / alone.tokens) + 1):
        passed = min(depth, round(count * alone.tokens))
        usable = gains[passed] - gains[passed - 1] if passed else 1.0
        tokens = count * alone.tokens + usable + gains[-1] - gains[passed]
        cycles.append((tokens, count * alone.seconds + usable * expected.seconds, count + usable))
    never = (alone.tokens, alone.seconds, 1.0)

    def cycle(delay: float) -> tuple[float, float, float]:
        passes = delay / alone.seconds
        return cycles[max(0, math.ceil(passes) - 1)] if passes <= len(cycles) else never

    return cycle
