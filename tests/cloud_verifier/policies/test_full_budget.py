"""The budget of draft tokens: no other cut is better, and deadlines are kept where they can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from cloud_verifier.choice import Act
from cloud_verifier.estimator import Costs, Estimator
from cloud_verifier.policies.full_budget import FullBudget
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.sampling import Split
from speculation.service_classes import SERVICE_CLASSES
from speculation.wire import ROOT
from tests.cloud_verifier.policies.rows import BUDGET, choice_of, waiting

RELAXED = SERVICE_CLASSES["economy"]


def expected_rate(steps: Sequence[Step], sizes: Sequence[int], cost: Estimator) -> float:
    """Return expected tokens per second of a pass with so much of each draft."""
    tokens, loads = 0.0, []
    for step, size in zip(steps, sizes, strict=True):
        tree = choice_of(step).tree
        tokens += 1.0 + sum(step.ledger.stats.edge.reach(tree.parents)[:size])
        loads.append(Load.row(1 + size, step.cached))
    return tokens / cost.seconds(Load.total(loads))


@st.composite
def drafts(draw: st.DrawFn) -> list[Step]:
    """Return steps with chains or trees, of sessions with any past."""
    steps = []
    for index in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 4))
        parents = [node - 1 if draw(st.booleans()) else draw(st.integers(ROOT, node - 1)) for node in range(size)]
        judged = [(3, draw(st.integers(0, 3))) for _ in range(draw(st.integers(0, 8)))]
        tokens = list(range(1, 1 + size))
        prompt = draw(st.integers(1, 3000))
        steps.append(waiting(index, 0.0, draft=tokens, parents=parents, judged=judged, prompt=prompt, service=RELAXED))
    return steps


costs = st.builds(
    PassCost, st.floats(0.0, 0.02), st.just(0.0), st.floats(0.0, 1e-6), st.floats(0.0001, 0.05)
)  # no price of a query with a key, so that the tokens of one draft cost the same


@settings(max_examples=80, deadline=None)
@given(steps=drafts(), cost=costs)
def test_no_other_cut_of_the_drafts_commits_more_per_second(steps: list[Step], cost: PassCost) -> None:
    estimates = Estimator(cost)
    batch = FullBudget().schedule(steps, 0.0, Costs(estimates), replace(BUDGET, patience_s=math.inf))
    assert set(batch.choices) == set(steps)
    sizes = [len(batch.choices[step].tree.tokens) for step in steps]
    chosen = [choice_of(step).tree.tokens[:size] for step, size in zip(steps, sizes, strict=True)]
    assert [batch.choices[step].tree.tokens for step in steps] == chosen, "what the ledger chose, from its beginning"
    all_sizes = product(*(range(1 + len(choice_of(step).tree.tokens)) for step in steps))
    best = max(expected_rate(steps, each, estimates) for each in all_sizes)
    assert expected_rate(steps, sizes, estimates) >= best * (1.0 - 1e-9)


def test_a_draft_of_rejection_sampling_stays_whole() -> None:
    step = waiting(0, draft=[1, 2], judged=[(2, 0)] * 50)
    cost = Estimator(PassCost(1.0, 0.0, 0.0, 0.01))
    assert FullBudget().schedule([step], 0.0, Costs(cost), BUDGET).choices[step].act is Act.DECODE
    step.request = structs.replace(step.request, sampling=Split(1.0))
    assert FullBudget().schedule([step], 0.0, Costs(cost), BUDGET).choices[step].tree.tokens == (1, 2)


def test_the_budget_of_tokens_cuts_the_first_draft_and_is_never_exceeded() -> None:
    steps = [waiting(index, draft=[1, 2, 3], judged=[(3, 3)] * 9) for index in range(3)]
    cost = Estimator(PassCost(0.0001, 0.0, 0.0, 0.01))
    for most in range(1, 13):
        batch = FullBudget().schedule(steps, 0.0, Costs(cost), replace(BUDGET, tokens=most))
        used = sum(1 + len(choice.tree.tokens) for choice in batch.choices.values())
        assert used == min(4, most) + 4 * max(0, min(2, most // 4 - 1))
