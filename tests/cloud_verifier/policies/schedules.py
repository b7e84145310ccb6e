"""Steps whose deadlines some schedule keeps, and which of them a policy keeps when nothing else comes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from cloud_verifier.choice import Choice
from cloud_verifier.costs import Costs
from cloud_verifier.estimator import Estimator
from cloud_verifier.policies import Budget, Policy
from cloud_verifier.policies.batch_builder import Candidate
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.service_classes import SERVICE_CLASSES
from tests.cloud_verifier.policies.rows import Declared, waiting


def choice_of(step: Step) -> Choice:
    choice = choose(step, 0.0, Estimator())
    assert choice is not None
    return choice


@st.composite
def feasible(draw: st.DrawFn) -> tuple[list[Step], Declared]:
    """Return steps that are due, at the earliest, when a hidden schedule of passes is done with them."""
    cost = Declared(PassCost(0.001, 0.0, 1e-5, draw(st.floats(0.001, 0.05))))
    prompts = draw(st.lists(st.integers(1, 4000), min_size=1, max_size=5))
    turns = [draw(st.integers(0, 2)) for _ in prompts]
    slack = draw(st.sampled_from([1e-6, 0.01, 0.1]))
    steps, now = [], 0.0
    for turn in sorted(set(turns)):
        mine = [index for index in range(len(prompts)) if turns[index] == turn]
        now += cost.seconds(Load.total(Load.row(1, prompts[index]) for index in mine))
        for index in mine:
            due = now + draw(st.floats(1e-6, slack))
            steps.append(waiting(index, service=SERVICE_CLASSES["economy"], prompt=prompts[index], time_left=due))
    return draw(st.permutations(steps)), cost


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
