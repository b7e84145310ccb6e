"""Steps whose deadlines some schedule keeps, and which of them a policy keeps when nothing else comes."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.choice import Choice
from cloud_verifier.estimator import Costs, Estimator
from cloud_verifier.policies import Budget, Policy
from cloud_verifier.policies.batch_builder import Candidate
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.step import Step
from speculation.pass_cost import Load
from tests.cloud_verifier.policies.rows import Declared


def choice_of(step: Step) -> Choice:
    choice = choose(step, 0.0, Estimator())
    assert choice is not None
    return choice


def kept_by(policy: Policy, steps: Sequence[Step], cost: Declared, budget: Budget) -> set[Step]:
    """Return the steps whose first pass ends by their deadline, as it was at time 0."""
    now, left, kept = 0.0, list(steps), set()
    while left:
        batch = policy.schedule(left, now, Costs(cost), budget)
        assert batch.choices, "nothing runs while something is ready"
        now += cost.seconds(Load.total(step.load(choice) for step, choice in batch.choices.items()))
        kept |= {step for step in batch.choices if now <= Candidate(step, choice_of(step), 0.0, cost).deadline}
        left = [step for step in left if step not in batch.choices]
    return kept
