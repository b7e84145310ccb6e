"""First come, first served."""

from __future__ import annotations

from collections.abc import Collection

from cloud_verifier.ledger import Act, Choice, Estimates
from cloud_verifier.policies.base import Batch, Budget
from cloud_verifier.step import Step
from speculation.pass_cost import Load

_CHEAP = 0.1
"""Share by which a pass may grow for a step that joins it while it waits for a draft."""


class Fcfs:
    """All steps with something to verify share a forward, the longest waiting first.

    A prefill is work of its own and never comes twice in a row while a step waits for a verification, so none waits
    longer than one prefill. A step that waits for a draft joins a forward with its next token where that is cheap.
    """

    def __init__(self) -> None:
        self._prefilled = False
        """The latest batch was a prefill."""

    def schedule(self, steps: Collection[Step], now: float, estimates: Estimates, budget: Budget) -> Batch:
        """See `Policy.schedule`."""
        prefill = min((step for step in steps if step.can_prefill), key=_order, default=None)
        choices = {step: choice for step in steps if (choice := step.choice(now)) is not None}
        ready = sorted((step for step, choice in choices.items() if choice.act is not Act.WAIT), key=_order)
        if ready and not _complete(ready, steps, now, budget):
            ready = []
        if prefill is not None and (not ready or (_order(prefill) < _order(ready[0]) and not self._prefilled)):
            self._prefilled = True
            return Batch(prefills=(prefill,))
        if not ready:
            return Batch()
        self._prefilled = False
        return Batch(choices=_with_company(ready[: budget.rows], choices, estimates, budget))

    def next_time(self, steps: Collection[Step], now: float, estimates: Estimates, budget: Budget) -> float | None:
        """See `Policy.next_time`."""
        if any(step.can_prefill for step in steps):
            return now
        times = []
        for step in steps:
            choice = step.choice(now)
            if choice is not None:
                times.append(choice.until if choice.act is Act.WAIT else step.since + budget.collect_s)
        return min(times, default=None)


def _order(step: Step) -> tuple[float, int]:
    return step.since, step.index


def _complete(ready: list[Step], steps: Collection[Step], now: float, budget: Budget) -> bool:
    """Whether a batch should start: it is full, no other could join, or the first has waited long enough."""
    live = sum(not (step.suspended or step.done) for step in steps)
    return len(ready) >= min(budget.rows, live) or now >= ready[0].since + budget.collect_s


def _with_company(
    ready: list[Step], choices: dict[Step, Choice], estimates: Estimates, budget: Budget
) -> dict[Step, Choice]:
    """Return the choices of these steps, and one token of those that wait for a draft and join them cheaply."""
    chosen = {step: choices[step] for step in ready}
    load = Load.total(step.load(choice) for step, choice in chosen.items())
    for step, choice in choices.items():
        if choice.act is Act.WAIT and len(chosen) < budget.rows:
            decode = Choice(Act.DECODE)
            together, alone = load + step.load(decode), estimates.seconds(load)
            if estimates.seconds(together) - alone <= _CHEAP * alone:
                chosen[step], load = decode, together
    return chosen
