"""Promises to each robot of several, under every policy: none loses by drafting, none goes ahead of all by waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.config import Scheduling
from cloud_verifier.policies import POLICIES
from cloud_verifier.policies.admission import Candidate, overdue
from speculation.pass_cost import PassCost
from speculation.wire import Idle
from tests.cloud_verifier.policies.fleet import Fleet, Robot
from tests.cloud_verifier.policies.rows import BUDGET, Declared, waiting
from tests.cloud_verifier.policies.schedules import choice_of

DEAR = PassCost(0.0175, 0.0, 0.0, 0.0825)
"""Each draft token makes a pass longer by 17.5 % of one that decodes."""
ANSWER, SECONDS = 40, 25.0


def tokens_of(policy: str, robots: int, idle: Idle) -> list[int]:
    """Return each robot's tokens, where drafts are nearly always wrong."""
    edges = [Robot(idle=idle, chance=0.1, depth=6, answer=ANSWER, starts_at=0.01 * place) for place in range(robots)]
    fleet = Fleet(edges, DEAR, Scheduling(policy=policy, max_batch=8, collect_s=0.0), seed=1).run(SECONDS)
    return [sum(each.tokens for each in fleet.rounds if each.robot == place) for place in range(robots)]


@pytest.mark.parametrize("policy", POLICIES)
def test_useless_drafts_make_no_robot_of_several_slower_than_decoding(policy: str) -> None:
    """By two tokens an answer, what one plain decode is at most, with a commit under way at the end."""
    alone, drafting = (tokens_of(policy, 2, idle) for idle in (Idle.DECODE, Idle.LEDGER))
    answers = 1 + max(alone) // ANSWER
    assert min(alone) > 3 * ANSWER
    assert all(mine >= plain - 2 * answers for mine, plain in zip(drafting, alone, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 5.0), max_size=30), st.integers(1, 32))
def test_those_who_waited_too_long_are_a_quarter_of_a_batch_at_most_and_one_at_least(
    waits: list[float], rows: int
) -> None:
    now, budget = 5.0, replace(BUDGET, rows=rows, patience_s=2.0)
    steps = [waiting(index, since) for index, since in enumerate(sorted(waits))]
    ready = [Candidate(step, choice_of(step), now, Declared(DEAR)) for step in steps]
    first, rest = overdue(ready, now, budget)
    late = [row for row in ready if now - row.step.since > 2.0]
    assert [*first, *rest] == ready
    assert first == late[: max(1, rows // 4)]
