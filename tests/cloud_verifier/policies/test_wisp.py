"""WISP: deadlines and utilities by hand, batches as the paper's own pseudocode builds them, and its hole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.estimator import Costs, Estimator
from cloud_verifier.policies.batch_builder import Candidate
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.policies.wisp import Wisp
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.service_classes import BATCH, SERVICE_CLASSES
from tests.cloud_verifier.policies.rows import BUDGET, waiting

COST = Estimator(PassCost(0.001, 0.0, 1e-6, 0.02))
CLASSES = [each for each in SERVICE_CLASSES.values() if each is not BATCH]
JUDGED = [(4, 3)] * 400
"""Three of four draft tokens were accepted, over and over: alpha = 3/4."""


def candidate(step: Step, now: float) -> Candidate:
    choice = choose(step, now)
    assert choice is not None
    return Candidate(step, choice, now, COST)


def test_a_verification_is_due_when_its_class_demands_so_many_tokens() -> None:
    """d = arrival + alpha N_d / s - T_draft - T_network = 5 + 3/4 x 4/2 - 0.2 - 0.1."""
    step = waiting(0, 1.0, draft=[1, 2, 3, 4], arrives=5.0, draft_ms=200, round_trip_s=0.1, service=CLASSES[0],
                   judged=JUDGED)  # fmt: skip
    row = candidate(step, 5.0)
    assert row.tokens == pytest.approx(3.0, abs=0.02)
    assert row.deadline == pytest.approx(5.0 + 3.0 / 2.0 - 0.2 - 0.1, abs=0.01)
    assert row.seconds == pytest.approx(5 * 0.001 + 100 * 1e-6)
    assert row.utility == pytest.approx(3.0 / 0.0051, rel=0.01)


def algorithm_1(rows: Sequence[Candidate], now: float, guard: float, room: int) -> list[Step]:
    """WISP's pseudocode, line by line."""

    def feasible_add(batch: list[Candidate], row: Candidate) -> bool:
        tentative = [*batch, row]
        memory = sum(each.load.new for each in tentative)
        earliest = min(each.deadline for each in tentative)
        return memory <= room and now + COST.seconds(Load.total(each.load for each in tentative)) <= earliest

    # Eq. 17: the latest start is the deadline less the row's predicted verification, on its own, and the guard time.
    latest_start = {row: row.deadline - COST.seconds(row.load) - guard for row in rows}
    critical = [row for row in rows if now >= latest_start[row]]
    others = [row for row in rows if row not in critical]
    critical.sort(key=lambda row: row.deadline)
    others.sort(key=lambda row: row.tokens / row.seconds, reverse=True)
    batch: list[Candidate] = []
    stop = False
    for row in critical:
        if feasible_add(batch, row):
            batch.append(row)
        else:
            stop = True
            break
    if not stop:
        for row in others:
            if not feasible_add(batch, row):
                break
            batch.append(row)
    return [row.step for row in batch]


@st.composite
def queues(draw: st.DrawFn, most: int = 6) -> list[Step]:
    """Return steps that wait since one second ago or less, in the order of their waiting."""
    steps = []
    for index in range(draw(st.integers(1, most))):
        size = draw(st.integers(0, 5))
        judged = [(size, draw(st.integers(0, size)))] * 20 if size else []
        since, prompt = draw(st.floats(-1.0, 0.0)), draw(st.integers(1, 20000))
        tokens = list(range(1, 1 + size)) if size else None
        service = draw(st.sampled_from(CLASSES))
        steps.append(waiting(index, since, draft=tokens, service=service, prompt=prompt, judged=judged))
    return sorted(steps, key=lambda step: (step.since, step.index))


@settings(max_examples=60, deadline=None)
@given(steps=queues(), guard=st.sampled_from([0.0, 0.02, 0.1, 1.0]), room=st.integers(8, 40))
def test_batches_are_those_of_the_algorithm_where_nothing_is_late(steps: list[Step], guard: float, room: int) -> None:
    in_time = [step for step in steps if not candidate(step, 0.0).late]
    batch = Wisp().schedule(in_time, 0.0, Costs(COST), replace(BUDGET, tokens=room, guard_s=guard))
    assert list(batch.choices) == algorithm_1([candidate(step, 0.0) for step in in_time], 0.0, guard, room)


@settings(max_examples=60, deadline=None)
@given(steps=queues(), patience=st.sampled_from([0.3, 10.0]))
def test_late_rows_empty_no_batch_and_break_no_deadline(steps: list[Step], patience: float) -> None:
    batch = Wisp().schedule(steps, 0.0, Costs(COST), replace(BUDGET, patience_s=patience))
    rows = [candidate(step, 0.0) for step in batch.choices]
    end = COST.seconds(Load.total(row.load for row in rows))
    assert rows and all(row.late or end <= row.deadline for row in rows)
    if any(step.since < -patience for step in steps):
        assert min(steps, key=lambda step: (step.since, step.index)) in batch.choices
