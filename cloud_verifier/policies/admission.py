"""What policies share that choose rows one by one: rows with value, price and deadline, and a batch as it grows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cloud_verifier.ledger import Act, Choice, Estimates
from cloud_verifier.policies.base import Batch, Budget
from cloud_verifier.step import Step
from speculation.pass_cost import NO_LOAD, Load

CHEAP = 0.1
"""Share by which a pass may grow for a step that joins it while it waits for a draft."""
_TICK_S = 1e-9
"""Shortest time that is counted with: an estimator that has seen nothing predicts 0."""


@dataclass(frozen=True)
class Row:
    """A verification or a decode that may run now, in the terms of WISP, Sec. 3.1 and 4.2."""

    step: Step
    choice: Choice
    load: Load
    tokens: float
    """N, Eq. 5: the accepted share of the session's draft tokens times those at hand. A pass commits one token at
    least, so that it is never less, and 1 for a decode."""
    seconds: float
    """v: what it adds to a pass."""
    deadline: float
    """d, Eq. 6 and 12, on the clock of `now`."""
    late: bool
    """Whether not even a pass of its own, begun now, would keep the deadline."""

    @property
    def utility(self) -> float:
        """U, Eq. 16: tokens per second."""
        return self.tokens / self.seconds

    @classmethod
    def of(cls, step: Step, choice: Choice, now: float, estimates: Estimates, tokens: float | None = None) -> Row:
        """Return what a step's choice brings (None: by Eq. 5), adds and is due."""
        load = step.load(choice)
        if tokens is None:
            survival = step.ledger.survival.get(choice.act)
            tokens = 0.0 if survival is None else survival.share * len(choice.tree.tokens)
        tokens = max(1.0, tokens)
        alone = estimates.seconds(load)
        seconds = max(_TICK_S, estimates.seconds(load + load) - alone)
        deadline = _deadline(step, choice, tokens)
        return cls(step, choice, load, tokens, seconds, deadline, now + alone > deadline)

    @property
    def due(self) -> float:
        """The deadline that a batch with this row has to keep: none that is lost already, it could only empty it."""
        return math.inf if self.late else self.deadline

    def cut(self, size: int) -> Row:
        """Return the row with the first `size` draft tokens only."""
        choice = cut(self.step, self.choice, size)
        return replace(self, choice=choice, load=self.step.load(choice))


def cut(step: Step, choice: Choice, size: int) -> Choice:
    """Return a choice with the first `size` draft tokens only; with none of them the step decodes.

    A draft of rejection sampling stays whole.
    """
    tree = choice.tree
    if size >= len(tree.tokens) or step.sampling.one_chain:
        return choice
    if size < 1:
        return Choice(Act.DECODE, declined=(*choice.declined, choice.act))
    return replace(choice, tree=tree.head(size))


def _deadline(step: Step, choice: Choice, tokens: float) -> float:
    """Return d = arrival + N/s - T_draft - T_network, and the step's own deadline where that is sooner.

    A draft that was made while the verifier was busy with the one before cost its robot no time, which Eq. 6 does not
    provide for: d is never less than N/s after the latest commit.
    """
    promised = tokens / step.service_class.tokens_per_s
    return min(step.deadline, max(step.since - step.edge_s(choice), step.committed_at) + promised)


class Admission:
    """A batch as it grows."""

    def __init__(self, now: float, estimates: Estimates, budget: Budget) -> None:
        self.now, self.estimates, self.budget = now, estimates, budget
        self.rows: dict[Step, Row] = {}
        self.load = NO_LOAD
        self._due = math.inf

    @property
    def choices(self) -> dict[Step, Choice]:
        """What the batch has been given so far."""
        return {step: row.choice for step, row in self.rows.items()}

    def seconds(self, more: Load = NO_LOAD) -> float:
        """Return the predicted seconds of a pass over all rows and so much more."""
        return self.estimates.seconds(self.load + more)

    def fits(self, more: Load, due: float = math.inf) -> bool:
        """Return whether the budget allows for so much more and every deadline, `due` too, would be kept.

        FeasibleAdd of Algorithm 1.
        """
        load, due = self.load + more, min(self._due, due)
        if load.rows > self.budget.rows or load.new > min(self.budget.tokens, self.budget.free):
            return False
        return math.isinf(due) or self.now + self.estimates.seconds(load) <= due

    def add(self, row: Row, due: float = math.inf) -> bool:
        """Admit a row, which is to be done by `due`, if it fits, and return whether it did.

        Of the first one as much as memory has room for: it must not keep the batch empty.
        """
        if not self.rows:
            row = row.cut(min(self.budget.tokens, self.budget.free) - 1)
        if not self.fits(row.load, due):
            return False
        self.rows[row.step] = row
        self.load, self._due = self.load + row.load, min(self._due, due)
        return True

    def invite(self, step: Step) -> None:
        """Let a step that waits for a draft decode one token where that is cheap."""
        row = Row.of(step, Choice(Act.DECODE), self.now, self.estimates)
        alone = self.seconds()
        if self.rows and self.seconds(row.load) - alone <= CHEAP * alone:
            self.add(row)


class RowPolicy(ABC):
    """A policy that starts when enough steps are ready, or one has waited for long enough, and then chooses rows.

    A prefill is work of its own and never comes twice in a row while a step waits for a verification.
    """

    def __init__(self) -> None:
        self._prefilled = False
        """The latest batch was a prefill."""

    @abstractmethod
    def fill(self, batch: Admission, rows: Sequence[Row]) -> None:
        """Admit at least one of the ready rows, which come in the order of their waiting."""

    def size(self, steps: Collection[Step], budget: Budget) -> int:
        """Return how many ready rows start a batch at once: all that could come, or as many as it can hold."""
        return min(budget.rows, sum(not (step.suspended or step.done) for step in steps))

    def schedule(self, steps: Collection[Step], now: float, estimates: Estimates, budget: Budget) -> Batch:
        """See `Policy.schedule`."""
        choices = _choices(steps, now, budget)
        start = self._start(steps, choices, now, budget)
        ready = [(step, choice) for step, choice in choices.items() if choice.act is not Act.WAIT]
        ready = sorted(ready, key=lambda each: _order(each[0])) if start is not None and start <= now else []
        prefill = min((step for step in steps if step.can_prefill), key=_order, default=None)
        if prefill is not None and (not ready or (_order(prefill) < _order(ready[0][0]) and not self._prefilled)):
            self._prefilled = True
            return Batch(prefills=(prefill,))
        if not ready:
            return Batch()
        self._prefilled = False
        batch = Admission(now, estimates, budget)
        self.fill(batch, [Row.of(step, choice, now, estimates) for step, choice in ready])
        for step, choice in choices.items():
            if choice.act is Act.WAIT:
                batch.invite(step)
        return Batch(choices=batch.choices)

    def next_time(self, steps: Collection[Step], now: float, estimates: Estimates, budget: Budget) -> float | None:
        """See `Policy.next_time`."""
        if any(step.can_prefill for step in steps):
            return now
        return self._start(steps, _choices(steps, now, budget), now, budget)

    def _start(
        self, steps: Collection[Step], choices: Mapping[Step, Choice], now: float, budget: Budget
    ) -> float | None:
        """Return when a batch starts if nothing else comes: it is complete, or its first has waited long enough."""
        at = {step: choice.until if choice.act is Act.WAIT else now for step, choice in choices.items()}
        overdue = min((max(ready, step.since + budget.collect_s) for step, ready in at.items()), default=None)
        size = self.size(steps, budget)
        if overdue is None or len(at) < size:
            return overdue
        return min(overdue, sorted(at.values())[size - 1])


def _choices(steps: Collection[Step], now: float, budget: Budget) -> dict[Step, Choice]:
    """Return what the steps would do that may do anything."""
    if not min(budget.tokens, budget.free):
        return {}
    return {step: choice for step in steps if (choice := step.choice(now)) is not None}


def _order(step: Step) -> tuple[float, int]:
    return step.since, step.index
