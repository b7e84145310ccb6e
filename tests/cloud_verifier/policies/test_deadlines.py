"""When a row is due follows what its robot says last, and its latest commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud_verifier.ledger import Act, Choice
from cloud_verifier.policies import POLICIES
from cloud_verifier.policies.admission import Candidate
from cloud_verifier.step import Step
from speculation.acceptance import Verdict
from speculation.pass_cost import Load, PassCost
from speculation.service import SERVICE_CLASSES
from speculation.wire import BeginStep, Draft, Idle
from tests.cloud_verifier.policies.rows import BUDGET, Declared, waiting
from tests.cloud_verifier.policies.schedules import choice_of

COST = Declared(PassCost(0.001, 0.0, 0.0, 0.02))
DEAR = Declared(PassCost(0.001, 0.0, 0.0, 0.1))
ECONOMY = SERVICE_CLASSES["economy"]


def due(step: Step, now: float) -> float:
    return Candidate(step, choice_of(step), now, COST).deadline


def test_a_draft_is_due_no_sooner_than_its_tokens_take_from_the_latest_commit_on() -> None:
    """It was drafted for 3 s, while the verifier was busy with the one before: its robot waited for nobody."""
    step = waiting(0, 0.0, service=ECONOMY)
    step.start(choice_of(step), 9.0)
    step.accept(Verdict((), 7, 1.0), 10.0)
    step.offer(Draft(1, 1, 1, step.digest, [1], draft_ms=3000), 10.0)
    assert due(step, 10.0) == pytest.approx(10.0 + 1.0 / 2.0)


def test_a_step_that_is_taken_up_again_has_the_round_trip_and_the_time_of_then() -> None:
    step = waiting(0, 0.0, service=ECONOMY, draft=[1], arrives=20.0, draft_ms=100, round_trip_s=0.01)
    choice = choice_of(step)
    assert step.edge_s(choice) == pytest.approx(0.11)
    step.resume(BeginStep(1, "p", b"j", idle=Idle.WAIT, round_trip_s=0.2, time_left=0.05), 20.0)
    assert step.edge_s(choice) == pytest.approx(0.3)
    assert due(step, 20.0) == pytest.approx(20.05)
    step.resume(BeginStep(1, "p", b"j", idle=Idle.WAIT, round_trip_s=0.2), 20.0)
    assert due(step, 20.0) == pytest.approx(20.0 - 0.3 + 1.0 / 2.0)


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
@pytest.mark.parametrize("since", [0.1, -0.3])
def test_a_steps_own_deadline_is_kept_though_its_class_is_missed(policy: str, since: float) -> None:
    """Twenty rows together would end 122 ms after it."""
    row = waiting(0, since, service=ECONOMY, time_left=0.45 - since)
    others = [waiting(at, 0.15, service=ECONOMY, draft=[1] * 8, judged=[(8, 8)] * 20) for at in range(1, 20)]
    batch = POLICIES[policy]().schedule([row, *others], 0.3, DEAR, replace(BUDGET, rows=32))
    end = 0.3 + DEAR.seconds(Load.total(step.load(choice) for step, choice in batch.choices.items()))
    assert row in batch.choices and end <= row.deadline


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
def test_who_is_due_before_a_draft_is_made_here_is_not_put_beside_it(policy: str) -> None:
    own, row = waiting(1), waiting(0, time_left=0.15)
    drafted = Choice(Act.SELF, size=8, depth=8, gain=4.0, drafting_s=0.2)
    own.choice = lambda now, drafting=True: drafted  # type: ignore[method-assign]
    assert list(POLICIES[policy]().schedule([own, row], 0.0, DEAR, BUDGET).choices) == [row]
    late = waiting(0, -1.0, time_left=0.05)
    assert set(POLICIES[policy]().schedule([own, late], 0.0, DEAR, BUDGET).choices) == {own, late}
