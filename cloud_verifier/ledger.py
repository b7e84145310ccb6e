"""Ledger: what a session's idle verifier does next: verify the draft at hand, decode one token alone, draft by itself
where a draft model stands beside the target, or wait a little.

It takes what commits most tokens per second by its estimates, and spends only *credit*: the lead, in tokens, that the
step has over decoding alone. So a step is never more than one plain decode behind, whatever link and drafts do, those
that are made here among them: their forwards, and the draft model's prefill, are paid from the same account. Where the
steps before it ended far ahead it is lent a token more, so that it can wait for its first draft (`Ledger.lent`).

Terms: T_d a pass that decodes alone, T_v one that verifies; a the chance of one more accepted draft token, E(k) =
1 + a + ... + a^k the tokens that a draft k deep commits (Leviathan et al., arXiv 2211.17192, Eq. 1). Times are seconds
on one clock that is given; no torch, no socket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cloud_verifier.experience import TICK_S, Acceptance, Arrivals, Pace, Part
from cloud_verifier.server_draft.costs import DraftCosts
from cloud_verifier.server_draft.value import OWN_DEPTH, OWN_TOKENS, ServerDraftValue
from cloud_verifier.survival import Survival
from cloud_verifier.tree import NOTHING, Tree
from speculation.acceptance import expected_tokens
from speculation.pass_cost import NO_LOAD, Load

PASS_PRICE = 0.5
"""Tokens that one more target forward must bring before it is preferred to waiting; docs/serving.md has the reason."""
MOST_LENT, LENT_SHARE = 1.0, 0.25
"""Credit that a step begins with: tokens at most, and as a share of the lead with which the steps before it ended."""
_SLACK = 1e-9
"""Rounding of sums of tokens."""
_WHOLE = 0.98
"""A draft is verified whole where that brings at least so much of what its best part would."""
_FIRST = 1.75
"""So many times the seconds of a step's first pass count: the first token waits for them, and the rest of the draft is
verified next."""
_TRIES, _OWN_TRIES = 2, 3
"""How many verifications of one token a lost stake must leave room for: a step that has none left can only decode. Of
the verifier's own drafts, which may be all that a step ever has, more."""


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
    size: int = 0
    """SELF: tokens of the draft that is to be made."""
    depth: int = 0
    """SELF: its levels at most; 0 for a chain."""
    drafting_s: float | None = None
    """SELF: seconds that the draft model is expected to take for it, prefill left out; None: as long as all levels."""
    rate: float = 0.0
    """SELF: tokens per second that a level more of the draft must bring."""
    gain: float = 1.0
    """Tokens that it is expected to commit."""
    until: float = 0.0
    """When a WAIT must be decided again."""
    declined: tuple[Act, ...] = ()
    """What was at hand and not taken."""

    @property
    def tokens(self) -> int:
        """Tokens that a pass feeds for it behind the cached ones: the answer's last and a draft."""
        return 1 + max(len(self.tree.tokens), self.size)


class Estimates(Protocol):
    """Predicted seconds of a pass; see `cloud_verifier.estimator.Estimator`."""

    @property
    def known(self) -> bool: ...

    @property
    def priced(self) -> bool: ...

    @property
    def spread(self) -> float: ...

    def seconds(self, load: Load) -> float: ...


class Ledger:
    """One session's estimates, and the account of its current step. `pass_price` in tokens, see `PASS_PRICE`."""

    def __init__(
        self,
        estimates: Estimates,
        pass_price: float = PASS_PRICE,
        drafting: DraftCosts | None = None,
        own_tokens: int = OWN_TOKENS,
        recompute: bool = False,
    ) -> None:
        """`drafting`: of the draft model beside the target, if there is one; it drafts `own_tokens` at most.

        `recompute`: every pass computes its prefix again, for the verifier has no cache.
        """
        self._recompute = recompute
        self._estimates = estimates
        self._price = pass_price
        self._drafting, self._own_tokens = drafting, own_tokens
        self._drafts, self._hints, self._own = Acceptance(), Acceptance(), ServerDraftValue()
        self._pace = Pace()
        self._act, self._tokens = Act.DECODE, 1
        """The latest pass and what it committed."""
        self._rate = 0.0
        """What a second of the pass under way is worth, in tokens, where it drafts here."""
        self.survival = {Act.VERIFY: Survival(), Act.HINT: Survival()}
        """Of the edge's draft tokens and of hints; for policies."""
        self._usual = 0.0
        self._arrivals, self._first = Arrivals(), Arrivals()
        """When drafts come behind a commit, and when the first one of a step does."""
        self._lead = 0.0
        """With how many tokens of lead steps end, at least: a low one counts at once, a high one slowly."""
        self._depth = 1.0
        self._prompt = 0
        self._committed = 0
        self._plain = 0.0
        self._waiting_since: float | None = None

    # --- the account: what decoding alone would have by now, and what is there

    def begin(self, cached: int = 0, position: int = 0, in_hand: bool = False, now: float = 0.0) -> None:
        """Open the account of a step, which may decode from now on, behind so many tokens in the cache.

        Its answer has `position` tokens, and a draft is there to go on with, or not.
        """
        if self._committed:
            lead = self._committed - self._plain
            self._lead += (1.0 if lead < self._lead else 0.25) * (lead - self._lead)
            self._usual += (0.25 if self._usual else 1.0) * (self._committed - self._usual)
        self._prompt = cached
        self._committed, self._plain, self._waiting_since = 0, 0.0, None
        self._arrivals.clear()
        self._first.clear()
        self._first.committed(position, in_hand, now)
        self._pace.clear()

    def pause(self) -> None:
        """The edge is gone or back: no wait is under way, and what comes next follows no pass."""
        self._waiting_since = None
        self._pace.clear()

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

    def draft_came(self, start: int, usable: bool, depth: int, now: float) -> None:
        """Learn from a draft for answer position `start`, `depth` levels deep; `usable`: it continues the answer."""
        (self._arrivals if self._committed else self._first).came(start, usable, now)
        self._depth += 0.25 * (depth - self._depth)

    def start(self, choice: Choice, now: float) -> float:
        """A pass for this step begins. Returns the seconds that were waited for a draft before it.

        At most one plain decode, and what was lent, stays on the account: a deadline that was missed because the
        machine ran other steps is not charged.
        """
        waited = self._waited(now)
        if waited > 0.0 and not self._committed and choice.act is not Act.VERIFY:
            # The edge may have waited for the first commit: when its draft comes then is not how long it takes.
            self._first = Arrivals()
        self._plain = min(self._committed - self.credit(now), self._committed + 1.0 + self.lent)
        self._waiting_since, self._rate = None, choice.rate
        for act in choice.declined:
            self._acceptance(act).declined()
            self._pace.forget(act)
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
            max(self._decode_s, self._seconds(1 + self._own.tokens(levels, self._own_tokens)))
            for levels in (depth, depth + 1)
        )
        if spent_s + forward_s + then_s > self._limit(now) - self._own_tries_s:
            return 0.0
        return self._own.further(tree) - self._rate * (then_s - now_s)

    def drafting_s(self, levels: int) -> float | None:
        """Return the seconds that a draft of so many levels takes here; None where none was made yet."""
        return self._drafting.forwards_s(levels) if self._drafting is not None else None

    def drafted(self, tree: Tree, seconds: float, now: float) -> Tree:
        """A draft of the verifier's own was made for this step in so many seconds, which are charged.

        Returns as much of it as commits most per second, drafting included, and as the account allows; of equally good
        parts the largest.
        """
        self._own.drafted(tree)
        self.charge(seconds)
        limit, least = self._limit(now), self._seconds(2)
        kept = max(limit - self._own_tries_s, min(least, limit))
        part = self._best(self._own.expected(tree), kept, seconds, whole=1.0)
        return tree.head(max(part.size, int(least <= limit)))

    def finish(self, act: Act, tree: Tree, accepted: int, committed: int, beside: Load = NO_LOAD) -> None:
        """Enter a pass: `accepted` levels of `tree`, `committed` tokens; `beside`: what other sessions fed in it.

        It is charged by what it cost over a pass in which this session had decoded alone. The time of others' passes
        is not charged: decoding alone would have waited for them as well.
        """
        self._act, self._tokens = act, committed
        loads = self._load(1) + beside, self._load(1 + len(tree.tokens)) + beside
        self._committed += committed
        self._plain += 1.0
        if not tree.tokens:
            return
        alone, shared = map(self._estimates.seconds, loads)
        ratio = shared / alone if alone > TICK_S else 1.0
        self._plain += max(0.0, ratio - 1.0) * self._caution
        if act is not Act.SELF:
            self._acceptance(act).judged(accepted, tree.levels[-1])
        elif tree.reach:  # a draft of a size that its robot has set may come without
            self._own.judged(tree, accepted)

    def committed(self, position: int, in_hand: bool, now: float) -> None:
        """A commit up to answer position `position` left; `in_hand`: a draft is there to go on with."""
        self._arrivals.committed(position, in_hand, now)
        self._pace.committed(self._act, self._tokens, now)
        soon_s, expected = self._arrivals.soon_s, self._expected()
        if self._drafting is not None and soon_s is not None and expected is not None:
            # As if one draft of three were at hand, and the others came soon.
            self._pace.try_edge(expected.tokens / (expected.seconds + soon_s * 2.0 / 3.0))

    def compared(self, accepted: int, levels: int) -> None:
        """A draft that was left alone has `accepted` of its first `levels` levels in common with what was committed."""
        self._drafts.judged(accepted, levels)

    # --- the choice

    @property
    def drafts_pay(self) -> bool:
        """Whether a draft like the latest ones would commit more per second than decoding alone."""
        return self._expected() is not None

    def expected(self, tree: Tree) -> float:
        """Return how many tokens verifying a draft of the edge is expected to commit."""
        return expected_tokens(self._drafts.chance, tree.levels[-1])

    def choose(
        self, draft: Tree | None, hint: Tree | None, now: float, room: int = 0, prefilled: bool = True
    ) -> Choice:
        """Return what to do now with the best current draft and a hint, if there are any.

        A draft that pays is verified, as much of it as pays and as the account allows, unless a draft of the
        verifier's own is worth more (`Pace`): `room` is how many levels that may have, 0 where there can be none, and
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
            part = self._stake(draft, self._drafts, now)
            if part.size and (own is None or self._beats(part, own)):
                declined = (Act.SELF,) if room and self._drafting is not None else ()
                return Choice(Act.VERIFY, draft.head(part.size), gain=part.tokens, declined=declined)
        declined = (Act.VERIFY,) if draft is not None else ()
        part = self._stake(hint, self._hints, now) if hint is not None else Part(0, 1.0, self._decode_s)
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
            drafting_s=self._drafting.forwards_s(own.size) or 0.0, rate=self._pace.rate(own),
        )  # fmt: skip

    def _beats(self, part: Part, own: Part) -> bool:
        """Whether to verify this part of an edge's draft rather than to draft here."""
        rate = self._pace.rate(own)
        verify, draft = (self._pace.advantage(act, each, rate) for act, each in ((Act.VERIFY, part), (Act.SELF, own)))
        return verify >= draft

    def _acceptance(self, act: Act) -> Acceptance:
        return {Act.HINT: self._hints, Act.SELF: self._own.levels}.get(act, self._drafts)

    def _limit(self, now: float) -> float:
        """Return how long what begins now may take: it must end before decoding alone is two tokens ahead,
        now + T_v <= t0 + (N + 2) T_d, or what is lent more."""
        return (1.0 + (self.credit(now) + self.lent + 1.0 + _SLACK) / self._caution) * self._decode_s

    @property
    def lent(self) -> float:
        """Tokens of credit that a step begins with where those before it ended far ahead: else it would decode alone
        first, whatever its drafts are worth."""
        return min(MOST_LENT, LENT_SHARE * max(0.0, self._lead))

    def _stake(self, tree: Tree, acceptance: Acceptance, now: float) -> Part:
        """Return what of the tree to verify now; nothing where decoding alone is better or all is spent.

        More than one token is staked only as far as its loss leaves `_TRIES` tries, each of which may cost
        T_v(1) - T_d more, and what tries with drafts of the verifier's own cost.
        """
        limit, least = self._limit(now), self._seconds(2)
        kept = max(_TRIES * max(0.0, least - self._decode_s), self._own_tries_s)
        chance = acceptance.chance
        expected = [expected_tokens(chance, level) for level in tree.levels]
        weight = 1.0 if self._committed else _FIRST
        part = self._best(expected, max(limit - kept, min(least, limit)), weight=weight)
        if not part.size and acceptance.due and least <= limit:
            return Part(1, expected[1], least)
        return part

    def _own_draft(self, room: int, prefilled: bool, now: float) -> Part | None:
        """Return depth, E and seconds, drafting included, of the draft by itself that commits most per second.

        None where none beats decoding alone, and none is due to be tried, as if it were free and right; where the
        account allows none, or none can be made. What the draft model's prefill takes is spread over the rest of an
        answer as long as earlier ones, and must be paid from the account at once.
        """
        costs = self._drafting
        if costs is None or room < 1 or self._pace.edge_leads:
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
        for depth, tokens in enumerate(self._own.gains(min(room, OWN_DEPTH)), start=1):
            spent = costs.forwards_s(depth) or 0.0
            seconds = spent + max(decode, self._seconds(1 + self._own.tokens(depth, self._own_tokens)))
            if seconds > (limit if depth == 1 else kept):
                break
            part = Part(depth, tokens, seconds + prefill_s * min(1.0, tokens / rest))
            if best is None or part.rate > best.rate:
                best = part
        if best is None or best.rate * decode > 1.0 + _SLACK:
            return best
        return a_try if self._own.levels.due else None

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
        weight: float = 1.0,
    ) -> Part:
        """Return the largest part of a draft whose rate is `whole` of the best one's, within `limit` s.

        `expected` are the tokens E that the first 0, 1, 2, ... tokens of the draft commit; `spent` are the seconds
        that it took here. No tokens where the best does not beat decoding alone: E(k)/T_v <= 1/T_d.

        The best one has the most E - r T, with r the largest rate; `weight` multiplies r, for shorter passes.
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
        if weight > 1.0:
            values = [part.tokens - weight * best * part.seconds for part in parts]
            most, slack = max(values[1:]), 1.0 - whole
            good = [p for p, value in zip(parts, values, strict=True) if value >= most - slack * p.tokens]
            return good[-1]
        return next(part for part in reversed(parts) if part.rate >= whole * best)

    def _expected(self) -> Part | None:
        """Return depth, E and T_v of the draft that comes next, None where it will not pay."""
        chance = self._drafts.chance
        depth = max(1, round(self._depth))
        best = self._best([expected_tokens(chance, level) for level in range(1 + depth)])
        return best if best.size else None

    def _wait(self, alone: Part, act: Act, now: float) -> float:
        """Return how many seconds to wait for a draft at most; 0 to go on alone at once.

        Of all deadlines d that a remembered delay suggests the one that is worth most; d = 0 is going on at once.
        Waiting must be paid from credit: even if nothing is accepted the step must not be behind after it,
        now + d + T_v <= t0 + (N + 1) T_d.
        """
        arrivals = self._arrivals if self._committed else self._first
        delays, expected = arrivals.remaining(now), self._expected()
        if not delays or expected is None:
            return 0.0
        longest = (self.credit(now) + self.lent + 1.0 + _SLACK) * self._decode_s / self._caution - expected.seconds
        if act is Act.SELF:  # nobody knows for how long a robot is late: no longer than a draft here would take
            longest = min(longest, alone.seconds - self._waited(now))
        over = self._over_drafting if act is Act.SELF else self._over_decoding
        worth: Callable[[float], float] = over(alone, expected, delays)
        deadlines: list[float] = [0.0, *(delay for delay in dict.fromkeys(delays) if delay <= longest)]
        return max(deadlines, key=worth)

    def _over_drafting(self, own: Part, expected: Part, delays: Sequence[float]) -> Callable[[float], float]:
        """Return what waiting until a deadline is worth where a draft is made here else: the advantage (`Pace`) of what
        is then verified, less what the wait takes. "Never" is one more remembered delay."""
        rate = self._pace.rate(own)
        verify, draft = (
            self._pace.advantage(act, part, rate) for act, part in ((Act.VERIFY, expected), (Act.SELF, own))
        )

        def worth(deadline: float) -> float:
            waits = [min(delay, deadline) for delay in (*delays, math.inf)]
            came = sum(delay <= deadline for delay in delays)
            return (came * verify + (len(waits) - came) * draft - rate * sum(waits)) / len(waits)

        return worth

    def _over_decoding(self, alone: Part, expected: Part, delays: Sequence[float]) -> Callable[[float], float]:
        """Return what waiting until a deadline d is worth where the step decodes, or verifies a hint, else.

        A renewal-reward comparison: with P = P(X <= d) for the draft's remaining delay X, a cycle commits
        P E + (1 - P) G tokens in E[min(X, d)] + P T_v + (1 - P) H seconds and P + (1 - P) n passes, where going on
        alone commits G in H seconds and n passes (`_alone`). It is worth (tokens - price x passes) per second, but
        nothing where it is slower than decoding alone, whatever the price. "Never" is one more remembered delay.
        """
        cycle, decode = self._alone(alone, expected), self._decode_s

        def worth(deadline: float) -> float:
            waits = [min(delay, deadline) for delay in (*delays, math.inf)]
            late = [delay - deadline for delay in (*delays, math.inf) if delay > deadline]
            came = 1.0 - len(late) / len(waits)
            reward, seconds, passes = (sum(column) / len(waits) for column in zip(*map(cycle, late), strict=True))
            reward += came * expected.tokens
            seconds += came * expected.seconds + sum(waits) / len(waits)
            if deadline and reward * decode < seconds * (1.0 - _SLACK):
                return -math.inf
            value: float = (reward - self._price * (passes + came)) / seconds
            return value

        return worth

    def _alone(self, alone: Part, expected: Part) -> Callable[[float], tuple[float, float, float]]:
        """Return a function of the draft's delay: tokens, seconds and passes of going on alone until it comes.

        With g tokens in T seconds it does so in n = ceil(delay/T) passes, after which the draft is still usable with
        p = a^(n g): n g + p E(k - n g) tokens in n T + p T_v seconds. A draft that comes too late for that does not
        count.
        """
        depth, _, verify_s = expected
        chance = self._drafts.chance
        gained, alone_s = alone.tokens, max(TICK_S, alone.seconds)
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
        cached = self._prompt + self._committed
        return Load.row(cached + tokens) if self._recompute else Load.row(tokens, cached)

    def _seconds(self, tokens: int) -> float:
        return self._estimates.seconds(self._load(tokens))

    @property
    def _decode_s(self) -> float:
        return max(TICK_S, self._seconds(1))

    @property
    def _caution(self) -> float:
        """Ratio of a slow pass to a fast one: what is spent beyond a plain decode is multiplied by it."""
        return 1.0 + self._estimates.spread
