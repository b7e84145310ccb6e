"""The budget of draft tokens: no other cut is better, and deadlines are kept where they can be."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.estimator import Estimator
from cloud_verifier.ledger import Act, Choice
from cloud_verifier.policies import Budget
from cloud_verifier.policies.admission import Admission, Candidate
from cloud_verifier.policies.full_budget import FullBudget, Paced
from cloud_verifier.step import Step
from speculation.acceptance import Verdict
from speculation.pass_cost import Load, PassCost
from speculation.sampling import Split
from speculation.service import SERVICE_CLASSES
from speculation.wire import ROOT
from tests.cloud_verifier.policies.rows import BUDGET, Declared, waiting
from tests.cloud_verifier.policies.schedules import choice_of, feasible, kept_by

RELAXED = SERVICE_CLASSES["economy"]


def expected_rate(steps: Sequence[Step], sizes: Sequence[int], cost: Declared) -> float:
    """Return expected tokens per second of a pass with so much of each draft."""
    tokens, loads = 0.0, []
    for step, size in zip(steps, sizes, strict=True):
        tree = choice_of(step).tree
        tokens += 1.0 + sum(step.ledger.survival[Act.VERIFY].of(tree.parents)[:size])
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


@settings(max_examples=200, deadline=None)
@given(steps=drafts(), cost=costs)
def test_no_other_cut_of_the_drafts_commits_more_per_second(steps: list[Step], cost: PassCost) -> None:
    estimates = Declared(cost)
    batch = FullBudget().schedule(steps, 0.0, estimates, replace(BUDGET, patience_s=math.inf))
    assert set(batch.choices) == set(steps)
    sizes = [len(batch.choices[step].tree.tokens) for step in steps]
    all_sizes = product(*(range(1 + len(choice_of(step).tree.tokens)) for step in steps))
    best = max(expected_rate(steps, each, estimates) for each in all_sizes)
    assert expected_rate(steps, sizes, estimates) >= best * (1.0 - 1e-9)


def test_tokens_go_to_the_session_whose_drafts_are_right() -> None:
    """A token is 30 % of a pass: only what is nearly certain is worth that."""
    good = waiting(0, draft=[1, 2, 3], judged=[(3, 3)] * 50)
    bad = waiting(1, draft=[1, 2, 3], judged=[(3, 0)] * 50)
    batch = FullBudget().schedule([good, bad], 0.0, Declared(PassCost(0.003, 0.0, 0.0, 0.01)), BUDGET)
    assert batch.choices[good].act is Act.VERIFY and len(batch.choices[good].tree.tokens) == 3
    assert batch.choices[bad] == Choice(Act.DECODE, declined=(Act.VERIFY,))


def test_what_is_cut_stays_held_and_is_verified_where_the_answer_comes_to_it() -> None:
    step = waiting(0, draft=[1, 2, 3, 4], judged=[(4, 2)] * 50)
    cost = Declared(PassCost(0.004, 0.0, 0.0, 0.01))
    batch = FullBudget().schedule([step], 0.0, cost, BUDGET)
    choice = batch.choices[step]
    assert 0 < len(choice.tree.tokens) < 4
    step.start(choice, 0.0)
    path = tuple(range(len(choice.tree.tokens)))
    step.accept(Verdict(path, len(path) + 1, 1.0), 0.1)
    rest = step.best
    assert rest is not None and rest.round == 1 and rest.tokens == (1, 2, 3, 4)[len(path) + 1 :]


def test_a_draft_of_rejection_sampling_stays_whole() -> None:
    step = waiting(0, draft=[1, 2], judged=[(2, 0)] * 50)
    cost = Declared(PassCost(1.0, 0.0, 0.0, 0.01))
    assert FullBudget().schedule([step], 0.0, cost, BUDGET).choices[step].act is Act.DECODE
    step.sampling = Split(1.0)
    assert FullBudget().schedule([step], 0.0, cost, BUDGET).choices[step].tree.tokens == (1, 2)


def test_without_an_estimate_nothing_is_cut() -> None:
    step = waiting(0, draft=[1, 2, 3], judged=[(3, 0)] * 50)
    assert FullBudget().schedule([step], 0.0, Estimator(), BUDGET).choices[step] == choice_of(step)


def test_where_time_stands_still_nothing_is_cut() -> None:
    step = waiting(0, draft=[1, 2, 3], judged=[(3, 0)] * 50)
    free = Declared(PassCost(0.0, 0.0, 0.0, 0.0))
    assert FullBudget().schedule([step], 9.0, free, BUDGET).choices[step] == choice_of(step)


@settings(max_examples=150, deadline=None)
@given(feasible())
def test_all_deadlines_are_kept_if_some_schedule_does(given: tuple[list[Step], Declared]) -> None:
    steps, cost = given
    assert kept_by(FullBudget(), steps, cost, BUDGET) == set(steps)


def test_a_pass_is_split_where_more_comes_in_time_by_it_and_not_else() -> None:
    """Passes of 40 ms and 10 ms a row: seven rows that are due after 100 ms, and one that is due after 60 ms."""
    cost = Declared(PassCost(0.0, 0.0, 1e-4, 0.04))
    interactive = SERVICE_CLASSES["interactive"]
    urgent = waiting(0, -0.065, service=interactive)
    others = [waiting(1 + n, 0.0, service=RELAXED) for n in range(7)]
    assert list(FullBudget().schedule([urgent, *others], 0.0, cost, BUDGET).choices) == [urgent, others[0]]
    # Now most of the others are lost where the urgent one is kept: together one is late, apart seven are.
    others = [waiting(1 + n, -0.375, service=RELAXED) for n in range(7)]
    assert len(FullBudget().schedule([urgent, *others], 0.0, cost, BUDGET).choices) == 8


def test_a_robot_that_is_ahead_of_its_class_can_wait_and_one_that_fell_behind_is_in_time_again() -> None:
    step = waiting(0, 0.0, service=RELAXED)
    for _ in range(19):
        step.start(choice_of(step), 0.5)
        step.accept(Verdict((), 1, 1.0), 0.6)
    cost = Declared(PassCost(0.0, 0.0, 0.0, 0.01))
    assert Paced(step, choice_of(step), 0.6, cost).deadline == pytest.approx((20 - 8) / 2.0)
    step.start(choice_of(step), 0.6)
    step.accept(Verdict((), 1, 1.0), 20.0)
    assert Paced(step, choice_of(step), 20.0, cost).deadline == pytest.approx(20.0 + 1 / 2.0)


def test_robots_that_are_ahead_are_left_out_where_others_are_due_and_not_else() -> None:
    """Passes of 10 ms and 10 ms a row, so that five rows make the constant small: 110 ms for all ten."""
    cost = Declared(PassCost(0.0, 0.0, 1e-4, 0.01))
    ahead = [waiting(n, -0.01 * n, service=RELAXED) for n in range(1, 10)]
    assert len(FullBudget().schedule(ahead, 0.0, cost, replace(BUDGET, rows=99)).choices) == 9
    behind = waiting(0, 0.0, service=SERVICE_CLASSES["interactive"])
    chosen = FullBudget().schedule([*ahead, behind], 0.0, cost, replace(BUDGET, rows=99)).choices
    assert behind in chosen and len(chosen) == len({*chosen}) < 10


def test_an_answer_that_is_lost_comes_after_those_that_are_due_and_before_those_ahead() -> None:
    """Ten tokens, 2 a second: after 4.99 s no pass of 20 ms brings nine of them in time."""
    cost = Declared(PassCost(0.0, 0.0, 1e-4, 0.01))
    lost = waiting(0, -0.45, service=RELAXED, max_tokens=10)
    lost.begun_at = -4.99
    due, ahead = waiting(1, -0.45, service=RELAXED), waiting(2, 0.0, service=RELAXED)
    rows = [Paced(step, choice_of(step), 0.0, cost) for step in (lost, due, ahead)]
    assert [row.lost(0.02) for row in rows] == [True, False, False]
    order = FullBudget().schedule([ahead, lost, due], 0.0, cost, BUDGET).choices
    assert list(order)[:2] == [due, lost]


def test_the_budget_of_tokens_cuts_the_first_draft_and_is_never_exceeded() -> None:
    steps = [waiting(index, draft=[1, 2, 3], judged=[(3, 3)] * 9) for index in range(3)]
    cost = Declared(PassCost(0.0001, 0.0, 0.0, 0.01))
    for most in range(1, 13):
        batch = FullBudget().schedule(steps, 0.0, cost, replace(BUDGET, tokens=most))
        used = sum(1 + len(choice.tree.tokens) for choice in batch.choices.values())
        assert used == min(4, most) + 4 * max(0, min(2, most // 4 - 1))


@pytest.mark.parametrize("seed", range(3))
def test_a_session_is_never_given_more_than_its_ledger_chose(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        steps = [
            waiting(index, draft=[1] * rng.randint(1, 6), judged=[(6, rng.randint(0, 6))] * rng.randint(0, 9))
            for index in range(4)
        ]
        cost = Declared(PassCost(rng.random() * 0.01, 1e-8, 1e-6, 0.01))
        batch = FullBudget().schedule(steps, 0.0, cost, Budget(4, 100, 0.0))
        for step, choice in batch.choices.items():
            whole = choice_of(step).tree
            assert choice.tree.tokens == whole.tokens[: len(choice.tree.tokens)]


def test_a_draft_that_is_yet_to_be_made_here_is_not_cut() -> None:
    """It has no tokens whose survival could be compared; its ledger knows what it is worth."""
    step = waiting(0)
    own = Choice(Act.SELF, size=32, depth=4, gain=3.0)
    batch = Admission(0.0, Declared(PassCost(0.001, 0.0, 0.0, 0.02)), BUDGET)
    FullBudget().fill(batch, [Candidate(step, own, 0.0, batch.estimates)])
    assert batch.choices == {step: own}
