"""Which deadlines a policy keeps when nothing else comes, and whether any schedule at all keeps every one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from cloud_verifier.ledger import Choice
from cloud_verifier.policies import Budget, Policy
from cloud_verifier.policies.admission import Candidate
from cloud_verifier.step import Step
from speculation.pass_cost import Load
from tests.cloud_verifier.policies.rows import Declared


def choice_of(step: Step) -> Choice:
    choice = step.choice(0.0)
    assert choice is not None
    return choice


def kept_by(policy: Policy, steps: Sequence[Step], cost: Declared, budget: Budget) -> set[Step]:
    """Return the steps whose first pass ends by their deadline, as it was at time 0."""
    now, left, kept = 0.0, list(steps), set()
    while left:
        batch = policy.schedule(left, now, cost, budget)
        assert batch.choices, "nothing runs while something is ready"
        now += cost.seconds(Load.total(step.load(choice) for step, choice in batch.choices.items()))
        kept |= {step for step in batch.choices if now <= Candidate(step, choice_of(step), 0.0, cost).deadline}
        left = [step for step in left if step not in batch.choices]
    return kept


def some_schedule_keeps_all(steps: Sequence[Step], cost: Declared) -> bool:
    """Try every way to run them in passes, one after another."""
    rows = [Candidate(step, choice_of(step), 0.0, cost) for step in steps]
    return any(_all_kept(passes, cost) for passes in _splits(rows))


def _all_kept(passes: Sequence[Sequence[Candidate]], cost: Declared) -> bool:
    now = 0.0
    for rows in passes:
        now += cost.seconds(Load.total(row.load for row in rows))
        if any(now > row.deadline for row in rows):
            return False
    return True


def _splits(rows: Sequence[Candidate]) -> Iterator[list[Sequence[Candidate]]]:
    if not rows:
        yield []
    for size in range(1, len(rows) + 1):
        for first in combinations(rows, size):
            for rest in _splits([row for row in rows if row not in first]):
                yield [first, *rest]
