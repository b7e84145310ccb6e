"""Spends one budget of draft tokens on all sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from cloud_verifier.estimator import Estimator
from cloud_verifier.policies.batch_builder import BatchBuilder, Candidate, overdue
from cloud_verifier.policies.draft_allocation import spend
from cloud_verifier.policies.row_policy import RowPolicy
from speculation.pass_cost import NO_LOAD, Load

_RESERVE = 8.0
"""Tokens that an answer should be ahead of its class, against rejected drafts and the prompts of others."""
_SHARE = 0.1
"""A pass is filled, where more is ready, until its constant is no more than this share of it."""


class Paced(Candidate):
    """A row that is due by the speed of its whole answer: a robot that is ahead of its class can wait."""

    @classmethod
    def of(cls, row: Candidate) -> Paced:
        """Return a row as one that is due so."""
        return cls(row.step, row.choice, row.now, row.estimates, row.accepted)

    @cached_property
    def tokens(self) -> float:
        """What it is expected to commit: what is accepted, and the target's own token behind that."""
        acceptance = self.step.ledger.stats.acceptance_of(self.choice.act)
        if acceptance is None or not self.choice.tree.tokens:
            return super().tokens
        return 1.0 + (acceptance.share * len(self.choice.tree.tokens) if self.accepted is None else self.accepted)

    def promised(self) -> float:
        """Return when the answer, from the beginning of its step on and with its prefill, would be no more than
        `_RESERVE` tokens ahead of its class.

        Never sooner than by Eq. 6, so that a robot that has fallen behind is in time again with its next round.
        """
        step = self.step
        ahead_of = step.usage.tokens + self.tokens - _RESERVE
        return max(super().promised(), step.begun_at + ahead_of / step.request.service_class.tokens_per_s)

    def lost(self, pass_s: float) -> bool:
        """Whether the answer will be slower than its class even if it gets every pass, of so many seconds, from now on.

        It is taken to become as long as it may, which leaves it the most time to catch up.
        """
        step, speed = self.step, self.step.request.service_class.tokens_per_s
        left = (step.answer.max_tokens - step.answer.position) / self.tokens
        # A draft that waited grew meanwhile: its robot can send one every second pass.
        round_s = min(self.edge_s, pass_s) + pass_s
        return self.now + left * round_s > step.begun_at + step.answer.max_tokens / speed


class FullBudget(RowPolicy):
    """Draft tokens of all sessions compete, and a robot that is ahead of its class lends its place in a forward.

    The root of a row, which decodes, is a token for certain and work that is to be done in any case; a draft token is
    worth the chance that it is reached. Tokens are taken in as long as the tokens per second of the whole grow; what is
    left out stays held. No session is given more than it would do itself, so that its ledger's promise holds.

    Rows run in the order of their deadlines: those that are due before all that is ready could have run twice, then
    those of answers that will miss their class in any case, then those that are ahead. As many run as `worth_running`
    says, but, where any is due so soon, no more than are due, or than make the constant of a pass small: rows that can
    wait make the pass of the others shorter, and their drafts grow.
    """

    def due(self, row: Candidate) -> float:
        """See `RowPolicy.due`. A class is a promise about a whole answer: no image or prompt beside it breaks that."""
        return row.asked

    def order(self, batch: BatchBuilder, rows: Sequence[Candidate]) -> Sequence[Candidate]:
        """See `RowPolicy.order`."""
        paced = [Paced.of(row) for row in spend(rows, batch)]
        together = paced[: batch.budget.rows]
        soon = batch.now + 2.0 * batch.estimates.seconds(Load.total(row.load for row in together))
        enough = _enough(together, batch.estimates)
        pass_s = batch.estimates.seconds(Load.total(row.load for row in together[:enough]))
        first, rest = overdue(paced, batch.now, batch.budget)
        lost: list[Paced] = []
        urgent: list[Paced] = []
        ahead: list[Paced] = []
        for row in rest:
            (lost if row.lost(pass_s) else urgent if row.deadline < soon else ahead).append(row)
        order = [*first, *_by_deadline(urgent), *lost, *_by_deadline(ahead)][: batch.budget.rows]
        count = worth_running(order, batch)
        if urgent:
            count = min(count, max(len(first) + len(urgent), enough))
        return order[:count]


def _by_deadline(rows: Sequence[Paced]) -> list[Paced]:
    """Return the rows that can be in time before those that are late, so that these break no deadline."""
    return sorted(rows, key=lambda row: (row.late, row.deadline))


def _enough(rows: Sequence[Candidate], estimates: Estimator) -> int:
    """Return how many of the rows make the constant of a pass `_SHARE` of it, all where they do not."""
    constant_s, _ = estimates.parts_s(rows[0].load)
    load = NO_LOAD
    for count, row in enumerate(rows, start=1):
        load += row.load
        if constant_s <= _SHARE * estimates.seconds(load):
            return count
    return len(rows)


def worth_running(rows: Sequence[Candidate], batch: BatchBuilder) -> int:
    """Return how many of the rows to run now.

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
            return len(rows)
    return len(passes[0][0])


def _passes(rows: Sequence[Candidate], batch: BatchBuilder) -> list[tuple[Sequence[Candidate], float]]:
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
