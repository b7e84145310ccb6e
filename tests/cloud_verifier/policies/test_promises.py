"""Promises to each robot of several, under every policy: none loses by drafting, none goes ahead of all by waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloud_verifier.config import Scheduling
from cloud_verifier.estimator import Estimator
from cloud_verifier.policies import POLICIES
from cloud_verifier.policies.row_policy import LEAST
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.service_classes import SERVICE_CLASSES
from speculation.wire import Idle
from tests.cloud_verifier.policies.fleet import Fleet, Robot
from tests.cloud_verifier.policies.rows import BUDGET, kept_by, waiting
from tests.cloud_verifier.scheduling import Bench, rows_of

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


@st.composite
def crowded(draw: st.DrawFn) -> tuple[list[Step], Estimator, int]:
    """Return steps alike, more than a pass has places, that a hidden schedule of full and part-filled passes keeps."""
    cost = Estimator(PassCost(0.001, 0.0, 1e-5, draw(st.floats(0.001, 0.05))))
    rows, fill = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    steps, now, loose = list[Step](), 0.0, draw(st.sampled_from([1e-6, 0.02, 0.2]))
    for _ in range(draw(st.integers(2, 5))):
        count = draw(st.integers(max(1, rows - fill), rows))
        now += cost.seconds(Load.total([Load.row(1, 100)] * count))
        for _ in range(count):
            left = now + draw(st.floats(1e-6, loose))
            steps.append(waiting(len(steps), service=SERVICE_CLASSES["economy"], time_left=left))
    return draw(st.permutations(steps)), cost, rows


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
@settings(max_examples=20, deadline=None)
@given(given=crowded())
def test_all_deadlines_are_kept_if_some_schedule_of_small_passes_does(
    policy: str, given: tuple[list[Step], Estimator, int]
) -> None:
    """By deadline, as many as fit: for rows alike and passes of so many places there is no better order."""
    steps, cost, rows = given
    budget = replace(BUDGET, rows=rows, guard_s=10.0)
    assert kept_by(POLICIES[policy](), steps, cost, budget) == set(steps)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=10, deadline=None)
@example(robots=1, rows=2, length=64, patience=0.3)  # a chunk beside its decode would always be too late
@given(robots=st.integers(1, 7), rows=st.integers(1, 4), length=st.integers(5, 200), patience=st.floats(0.0, 0.5))
def test_a_prompt_among_robots_that_are_answered_is_fed_in_a_bounded_time(
    policy: str, robots: int, rows: int, length: int, patience: float
) -> None:
    """Once it has waited for `--patience-s` every turn of its feeds a block of the cache at least."""
    bench = Bench(policy=policy, max_batch=rows, patience_s=patience, collect_s=0.0)
    bench.scheduler.costs.passes = cost = Estimator(DEAR)
    cost.observe = lambda load, seconds: None  # type: ignore[method-assign]
    for row in range(robots):
        bench.begin(row, idle=Idle.DECODE, max_tokens=400)
    while any(bench.step(row).pending for row in range(robots)):
        bench.turn()
    bench.begin(robots, prompt="long ".ljust(length + 1, "x"))
    begun, slowest, turns = bench.now, 0.0, 1 + -(-length // LEAST)
    while bench.step(robots).pending:
        batch = bench.next()
        assert batch, "nothing runs while a prompt waits"
        load = Load.total(row.load for row in rows_of(batch))
        seconds = cost.seconds(load) if load.rows else 0.05
        bench.now, slowest = bench.now + seconds, max(slowest, seconds)
        bench.run(batch)
        assert bench.now - begun <= patience + (turns + 1) * (1 + -(-(robots + 1) // rows)) * slowest + 0.1


@pytest.mark.parametrize("policy", ["fcfs", "pipeline", "full_budget"])
def test_long_wrong_drafts_slow_nobody_else_down(policy: str) -> None:
    """A robot that sends 60 wrong tokens, always at once, beside five that draft as usual."""
    honest = [Robot(starts_at=0.01 * place) for place in range(5)]
    found = []
    for sixth in (Robot(), Robot(depth=60, chance=0.0, draft_s=0.0005)):
        run = Fleet([*honest, sixth], DEAR, Scheduling(policy=policy)).run(12.0)
        found.append(sum(each.tokens for each in run.rounds if each.robot < 5))
    assert found[1] >= 0.95 * found[0]
