"""One budget of draft tokens for all sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from cloud_verifier.ledger import Act, Choice
from cloud_verifier.policies.admission import Admission, Candidate, cut, overdue
from cloud_verifier.policies.row_policy import RowPolicy
from speculation.pass_cost import NO_LOAD, Load

DECODE = Choice(Act.DECODE)
_MARGIN = 1.25
"""How much faster than its class an answer must be for its robot to wait."""


class Paced(Candidate):
    """A row that is due by the speed of its whole answer: a robot that is ahead of its class can wait."""

    def promised(self) -> float:
        """Return when the answer, from the beginning of its step on and with its prefill, would be no faster any more
        than `_MARGIN` times its class.

        Never sooner than by Eq. 6, so that a robot that has fallen behind is in time again with its next round.
        """
        step = self.step
        tokens, speed = step.tally.tokens + self.tokens, _MARGIN * step.service_class.tokens_per_s
        return max(super().promised(), step.begun_at + tokens / speed)


class FullBudget(RowPolicy):
    """Draft tokens of all sessions compete, and a forward is split only for deadlines that are worth it.

    The root of a row, which decodes, is a token for certain and work that is to be done in any case; a draft token is
    worth its survival. Tokens are taken in as long as the tokens per second of the whole grow; what is left out stays
    held. No session is given more than it would do itself, so that its ledger's promise holds.

    Then as many rows run as `worth_running` says: those that can be in time by deadline, then the late ones.
    """

    def due(self, rows: Sequence[Candidate]) -> float:
        """See `RowPolicy.due`. A class is a promise about a whole answer, which an image beside it does not break."""
        return min((row.step.deadline for row in rows if not row.late), default=math.inf)

    def fill(self, batch: Admission, rows: Sequence[Candidate]) -> None:
        """See `RowPolicy.fill`."""
        rows = spend(rows, batch)
        first, rest = overdue(rows, batch.now, batch.budget)
        rest.sort(key=lambda row: row.due)
        order = [*first, *rest][: batch.budget.rows]
        count, keeps = worth_running(order, batch)
        for row in order[:count]:
            if not batch.add(row, row.due if keeps else math.inf):
                break


def worth_running(rows: Sequence[Candidate], batch: Admission) -> tuple[int, bool]:
    """Return how many of the rows to run now, and whether every deadline among these is kept.

    Either all of them, or the first as long as their deadlines are kept and the others in passes of their own. The
    former takes less time in all, the latter may keep more deadlines: it is chosen where it keeps all of them, or where
    the tokens that it brings in time are more than its additional seconds would commit.

    For rows by deadline and prices that do not depend on what else is in a pass (WISP, Eq. 19), passes as long as their
    deadlines allow keep all deadlines if any split does: a longer pass leaves fewer rows to come later.
    """
    seconds = batch.estimates.seconds(Load.total(row.load for row in rows))
    passes = _passes(rows, batch)
    kept = [row for mine, end in passes for row in mine if _keeps(row, end)]
    if len(passes) > 1 and len(kept) < sum(not row.late for row in rows):
        together = sum(row.tokens for row in rows if _keeps(row, batch.now + seconds))
        more = sum(row.tokens for row in kept) - together
        extra_s = passes[-1][1] - batch.now - seconds
        if more * seconds <= extra_s * sum(row.tokens for row in rows):
            return len(rows), False
    return len(passes[0][0]), True


def _passes(rows: Sequence[Candidate], batch: Admission) -> list[tuple[Sequence[Candidate], float]]:
    """Return rows in passes, each as long as its deadlines allow, and when they end."""
    estimates, now, start = batch.estimates, batch.now, 0
    passes = []
    while start < len(rows):
        load, due, end = NO_LOAD, math.inf, start
        for row in rows[start:]:
            own = row.due if _keeps(row, now + estimates.seconds(row.load)) else math.inf
            if end > start and now + estimates.seconds(load + row.load) > min(due, own):
                break
            load, due, end = load + row.load, min(due, own), end + 1
        now += estimates.seconds(load)
        passes.append((rows[start:end], now))
        start = end
    return passes


def _keeps(row: Candidate, end: float) -> bool:
    return not row.late and end <= row.deadline


def spend(rows: Sequence[Candidate], batch: Admission) -> list[Candidate]:
    """Return the rows with as much of their drafts as makes a pass over the first of them, as many as a batch can have,
    commit most tokens per second.

    Where a token's price does not depend on what else is in the pass (WISP, Eq. 19), no other choice of tokens is
    better: for a ratio of sums those are right that bring more than the ratio (Dinkelbach, 1967).
    """
    estimates = batch.estimates
    if not estimates.known:
        return [Paced(row.step, row.choice, row.now, estimates) for row in rows]
    together = rows[: batch.budget.rows]
    roots = Load.total(row.step.load(DECODE) for row in together)
    tokens, seconds = float(roots.rows), estimates.seconds(roots)
    parts = [_parts(row, roots, seconds) for row in rows]
    for part in sorted(chain.from_iterable(parts[: len(together)]), key=lambda part: -part.rate):
        if part.rate * seconds < tokens:
            break
        tokens, seconds = tokens + part.tokens, seconds + part.seconds
    rate = tokens / seconds if seconds > 0.0 else 0.0
    return [_cut(row, mine, rate) for row, mine in zip(rows, parts, strict=True)]


class Part(NamedTuple):
    """Tokens of a draft that come together."""

    end: int
    """How many tokens of the draft there are with these."""
    tokens: float
    """How many of these are expected to be accepted."""
    seconds: float
    """What they add to a pass."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0.0 else math.inf


def _parts(row: Candidate, roots: Load, roots_s: float) -> list[Part]:
    """Return a draft in parts whose rates fall: a token that is worth more than those before it comes with them.

    Its tokens are taken to cost the same; a later one only reads the earlier ones, besides.
    """
    survival, step = row.step.ledger.survival.get(row.choice.act), row.step
    if survival is None or not row.choice.tree.tokens:
        return []
    price = row.estimates.seconds(roots + row.load - step.load(DECODE)) - roots_s
    price = max(0.0, price) / len(row.choice.tree.tokens)
    parts: list[Part] = []
    for end, chance in enumerate(survival.of(row.choice.tree.parents), start=1):
        part = Part(end, chance, price)
        while parts and parts[-1].rate <= part.rate:
            part = Part(end, parts[-1].tokens + part.tokens, parts[-1].seconds + part.seconds)
            parts.pop()
        parts.append(part)
    return parts


def _cut(row: Candidate, parts: Sequence[Part], rate: float) -> Candidate:
    """Return a row with the parts of its draft that bring at least so many tokens per second.

    A draft that is yet to be made here has no parts, and stays.
    """
    if row.choice.act is Act.SELF:
        return Paced(row.step, row.choice, row.now, row.estimates)
    taken = [part for part in parts if part.rate >= rate]
    choice = cut(row.step, row.choice, taken[-1].end if taken else 0)
    if choice is row.choice:
        taken = list(parts)
    return Paced(row.step, choice, row.now, row.estimates, sum(part.tokens for part in taken))
