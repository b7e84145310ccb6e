"""Static batches: the size, the collect time, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from cloud_verifier.costs import Costs
from cloud_verifier.policies.static_batch import StaticBatch
from speculation.pass_cost import PassCost
from tests.cloud_verifier.policies.rows import BUDGET, Declared, waiting

COST = Declared(PassCost(0.001, 0.0, 0.0, 0.01))


def test_a_batch_starts_when_it_is_full_or_the_first_has_waited_long_enough() -> None:
    budget = replace(BUDGET, rows=3, collect_s=0.5)
    steps = [waiting(index, 0.1 * index, draft=[1, 2]) for index in range(4)]
    policy = StaticBatch()
    assert policy.schedule(steps[:2], 0.2, Costs(COST), budget).again == 0.5
    assert not policy.schedule(steps[:2], 0.4999, Costs(COST), budget)
    assert list(policy.schedule(steps[:2], 0.5, Costs(COST), budget).choices) == steps[:2]
    batch = policy.schedule(steps[::-1], 0.3, Costs(COST), budget)
    assert list(batch.choices) == steps[:3], "the longest waiting first"
    assert all(choice.tree.tokens == (1, 2) for choice in batch.choices.values())
