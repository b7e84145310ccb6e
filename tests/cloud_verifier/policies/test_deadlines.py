"""When a row is due follows what its robot says last, and its latest commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud_verifier.costs import Costs
from cloud_verifier.policies import POLICIES
from cloud_verifier.policies.batch_builder import Candidate
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.service_classes import SERVICE_CLASSES
from tests.cloud_verifier.policies.rows import BUDGET, Declared, waiting
from tests.cloud_verifier.policies.schedules import choice_of

COST = Declared(PassCost(0.001, 0.0, 0.0, 0.02))
DEAR = Declared(PassCost(0.001, 0.0, 0.0, 0.1))
ECONOMY = SERVICE_CLASSES["economy"]


def due(step: Step, now: float) -> float:
    return Candidate(step, choice_of(step), now, COST).deadline


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
@pytest.mark.parametrize("since", [0.1, -0.3])
def test_a_steps_own_deadline_is_kept_though_its_class_is_missed(policy: str, since: float) -> None:
    """Twenty rows together would end 122 ms after it."""
    row = waiting(0, since, service=ECONOMY, time_left=0.45 - since)
    others = [waiting(at, 0.15, service=ECONOMY, draft=[1] * 8, judged=[(8, 8)] * 20) for at in range(1, 20)]
    batch = POLICIES[policy]().schedule([row, *others], 0.3, Costs(DEAR), replace(BUDGET, rows=32))
    end = 0.3 + DEAR.seconds(Load.total(step.load(choice) for step, choice in batch.choices.items()))
    assert row in batch.choices and end <= row.request.deadline
