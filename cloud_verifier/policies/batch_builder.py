"""Rows that may run now, with value, price and deadline, and a batch of them as it grows (WISP, Sec. 3.1, 4.2, 4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from cloud_verifier.choice import Act, Choice
from cloud_verifier.estimator import Estimator
from cloud_verifier.policies.base import Budget
from cloud_verifier.step import Step
from speculation.pass_cost import NO_LOAD, Load

CHEAP = 0.1
"""Share by which a pass may grow for a step that joins it while it waits for a draft, or for a second prompt."""
_TICK_S = 1e-9
"""Shortest time that is counted with: an estimator that has seen nothing predicts 0."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A verification or a decode that may run at `now`; what nobody asks for is not computed."""

    step: Step
    choice: Choice
    now: float
    estimates: Estimator
    accepted: float | None = None
    """Draft tokens that are expected to be accepted. None, by WISP's Eq. 5: the share of all of the session's that was
    accepted so far, times those at hand."""

    @cached_property
    def load(self) -> Load:
        """What it computes."""
        return self.step.load(self.choice)

    @cached_property
    def edge_s(self) -> float:
        """Return the seconds that its draft took on the edge and both ways of the link; 0 where there is none.

        T_draft + T_network of WISP, Eq. 6.
        """
        draft = self.step.drafts.get(self.choice.tree.round)
        return 0.0 if draft is None else draft.draft_ms / 1e3 + self.step.request.round_trip_s

    @cached_property
    def tokens(self) -> float:
        """N, Eq. 5; at least 1, what every pass commits and a decode brings."""
        if self.accepted is not None:
            return max(1.0, self.accepted)
        if self.choice.act is Act.SELF:
            return max(1.0, self.choice.gain)
        acceptance = self.step.ledger.stats.acceptance_of(self.choice.act)
        return 1.0 if acceptance is None else max(1.0, acceptance.share * len(self.choice.tree.tokens))

    @cached_property
    def alone_s(self) -> float:
        """v of Eq. 17: a pass of its own, and the draft that is made here for it."""
        return self.estimates.seconds(self.load) + (self.choice.drafting_s or 0.0)

    @cached_property
    def seconds(self) -> float:
        """v of Eq. 16: what it adds to a pass."""
        return max(_TICK_S, self.estimates.parts_s(self.load)[1])

    @cached_property
    def deadline(self) -> float:
        """d, Eq. 12, or the step's own deadline where that is sooner."""
        return min(self.step.request.deadline, self.promised())

    def promised(self) -> float:
        """Return when its class demands it to be done: arrival + N/s - T_draft - T_network (Eq. 6).

        A draft that was made while the verifier was busy with the one before cost its robot no time, which Eq. 6 does
        not provide for: it is never less than N/s after the latest commit.
        """
        step = self.step
        began = max(step.since - self.edge_s, step.committed_at)
        return began + self.tokens / step.request.service_class.tokens_per_s

    @cached_property
    def late(self) -> bool:
        """Whether not even a pass of its own, begun now, would keep the deadline."""
        return self.now + self.alone_s > self.deadline

    @property
    def due(self) -> float:
        """The deadline that a batch with this row has to keep: none that is lost already, it could only empty it."""
        return min(self.asked, self._in_time(self.promised()))

    @property
    def asked(self) -> float:
        """The step's own deadline alone, where it can be kept."""
        return self._in_time(self.step.request.deadline)

    def _in_time(self, deadline: float) -> float:
        return deadline if self.now + self.alone_s <= deadline else math.inf

    @property
    def utility(self) -> float:
        """U, Eq. 16: tokens per second."""
        return self.tokens / self.seconds


Row = TypeVar("Row", bound=Candidate)


def cut(step: Step, choice: Choice, size: int) -> Choice:
    """Return a choice with the first `size` draft tokens only; with none of them the step decodes.

    A draft of rejection sampling stays whole.
    """
    if choice.tokens <= 1 + size or step.request.sampling.one_chain:
        return choice
    if size < 1:
        return Choice(Act.DECODE, declined=(*choice.declined, choice.act))
    return replace(choice, tree=choice.tree.head(size), size=min(choice.size, size))


def overdue(rows: Sequence[Row], now: float, budget: Budget) -> tuple[list[Row], list[Row]]:
    """Return the rows that must go first so that nobody waits for ever, and the others; both in the order of waiting.

    The former are those that wait for longer than `Budget.patience_s`, a quarter of a batch at most, and one at least.
    """
    most = max(1, budget.rows // 4)
    count = sum(now - row.step.since > budget.patience_s for row in rows[:most])
    return list(rows[:count]), list(rows[count:])


class BatchBuilder:
    """A batch of rows as it grows."""

    def __init__(self, now: float, estimates: Estimator, budget: Budget, sessions: int = 1) -> None:
        """sessions: how many something may come of, those that are not ready among them."""
        self.now, self.estimates, self.budget, self.sessions = now, estimates, budget, sessions
        self.choices: dict[Step, Choice] = {}
        self.load = NO_LOAD
        self.due = math.inf
        """The earliest deadline that is to be kept."""
        self.drafting_s = 0.0
        """Of the longest draft that is made here for one of them, for which all wait."""

    def admit(self, step: Step, choice: Choice, load: Load, due: float = math.inf) -> bool:
        """Take in a step, which computes `load`, where the budget allows for it and every deadline, `due` too, is kept.

        FeasibleAdd of Algorithm 1. Returns whether it did.
        """
        load, due = self.load + load, min(self.due, due)
        if load.rows > self.budget.rows or load.new > self.budget.tokens:
            return False
        drafting_s = max(self.drafting_s, choice.drafting_s or 0.0)
        if not math.isinf(due) and self.now + drafting_s + self.estimates.seconds(load) > due:
            return False
        self.choices[step] = choice
        self.load, self.due, self.drafting_s = load, due, drafting_s
        return True

    def add(self, row: Candidate, due: float) -> bool:
        """Admit a row, which is to be done by `due`, if it fits, and return whether it did.

        Of the first one as much as the budget has tokens for: it must not keep the batch empty.
        """
        choice, load = row.choice, row.load
        if not self.choices:
            choice = cut(row.step, choice, self.budget.tokens - 1)
            load = row.step.load(choice)
        return self.admit(row.step, choice, load, due)

    def invite(self, step: Step) -> None:
        """Let a step that waits for a draft decode one token where that is cheap."""
        choice, alone = Choice(Act.DECODE), self.estimates.seconds(self.load)
        load = step.load(choice)
        if self.choices and self.estimates.seconds(self.load + load) - alone <= CHEAP * alone:
            self.admit(step, choice, load)
