"""First come, first served."""

from __future__ import annotations

from collections.abc import Collection

from cloud_verifier.ledger import Act, Choice, Estimates
from cloud_verifier.policies.base import Batch, Budget
from cloud_verifier.policies.chunks import fit_chunks
from cloud_verifier.step import Step
from speculation.pass_cost import Load

_CHEAP = 0.1
"""Share by which a pass may grow for a step that joins it while it waits for a draft, or for a second prompt."""
_SLOWER = 2.0
"""Times that a forward with chunks of prefills may take of one in which every robot under way decodes."""


class Fcfs:
    """All steps with something to verify share a forward, the longest waiting first, and prefills join it in chunks.

    A forward with chunks is at most about `_SLOWER` times one in which every robot under way decodes, so that a robot
    that begins holds up no other; where none is under way a prompt is fed whole. An image is work of its own and never
    comes twice in a row while others wait, so none waits longer than one. A step that waits for a draft joins a forward
    with its next token where that is cheap.
    """

    def __init__(self) -> None:
        self._encoded = False
        """The latest batch was an image."""

    def schedule(self, steps: Collection[Step], now: float, estimates: Estimates, budget: Budget) -> Batch:
        """See `Policy.schedule`."""
        begun = sorted((step for step in steps if step.can_prefill), key=lambda step: (step.begun_at, step.index))
        prefills = [step for step in begun if step.encoded]
        choices = {step: choice for step in steps if (choice := step.choice(now)) is not None}
        ready = sorted((step for step, choice in choices.items() if choice.act is not Act.WAIT), key=_order)
        # A forward with chunks runs anyway, so nobody waits for company then.
        if ready and not prefills and not _complete(ready, steps, now, budget):
            ready = []
        beside = {step: choices[step] for step in ready[: budget.rows]}
        chunks = _chunks(prefills, beside, steps, estimates, budget)
        work = sorted((*ready, *chunks), key=_order)[: budget.rows]
        image = next((step for step in begun if not step.encoded), None)
        if image is not None and (not work or (_order(image) < _order(work[0]) and not self._encoded)):
            self._encoded = True
            return Batch(encodes=(image,))
        if not work:
            return Batch()
        self._encoded = False
        chunks = {step: chunks[step] for step in work if step in chunks}
        joined = [step for step in work if step in choices]
        return Batch(chunks=chunks, choices=_with_company(joined, choices, estimates, budget.rows - len(chunks)))

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
    ready: list[Step], choices: dict[Step, Choice], estimates: Estimates, rows: int
) -> dict[Step, Choice]:
    """Return the choices of these steps, and one token of those that wait for a draft and join them cheaply."""
    chosen = {step: choices[step] for step in ready}
    load = Load.total(step.load(choice) for step, choice in chosen.items())
    for step, choice in choices.items():
        if chosen and choice.act is Act.WAIT and len(chosen) < rows:
            decode = Choice(Act.DECODE)
            together, alone = load + step.load(decode), estimates.seconds(load)
            if estimates.seconds(together) - alone <= _CHEAP * alone:
                chosen[step], load = decode, together
    return chosen


def _chunks(
    prefills: list[Step], choices: dict[Step, Choice], steps: Collection[Step], estimates: Estimates, budget: Budget
) -> dict[Step, int]:
    """Return how much of each prefill, the first come first, joins a forward of these choices."""
    if not prefills:
        return {}
    beside = Load.total(step.load(choice) for step, choice in choices.items())
    under_way = [step for step in steps if not (step.pending or step.suspended or step.done)]
    if under_way:
        decoding = estimates.seconds(Load.total(step.load(Choice(Act.DECODE)) for step in under_way))
        limit_s = max(_SLOWER * decoding, estimates.seconds(beside))
    else:
        # The first prompt is fed whole, and the next ones with it where that is cheap.
        limit_s = (1.0 + _CHEAP) * estimates.seconds(prefills[0].chunk_load(prefills[0].prompt_left))
    return fit_chunks(prefills, beside, estimates, limit_s, budget.chunk)
