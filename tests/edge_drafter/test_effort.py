"""The edge's ledger of effort: what is worth a forward, what is left alone, and how rarely that is tried."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter.effort import GAIN, SELDOM, STEPS, Effort
from edge_drafter.stats import DecodingStats
from edge_drafter.tree import Forward, Node, Origin, Proposed
from vlm_nav_evaluation.virtual_time import Synthetic, Timings, decode, drafting

DRAFT_S, TOKEN_S = 0.02, 0.1


def proposed(ahead: int, hoped: float = 1.0) -> Node:
    return Node(5, 0, 1.0, 1.0, Origin.DRAFT, ahead, proposed=Proposed(Forward(), ahead, hoped))


def timed(effort: float) -> Effort:
    """Return a ledger that knows what a token takes."""
    found = Effort(effort)
    found.committed(1, TOKEN_S, 0.0)
    return found


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_forward_runs_where_what_it_may_save_pays_its_price(effort: float, hoped: float) -> None:
    assert timed(effort).is_worth([(1, hoped)], DRAFT_S) == (hoped * TOKEN_S >= (1.0 - effort) * DRAFT_S)


@given(st.floats(0.0, 0.99), st.floats(0.0, 1.0))
def test_on_shared_processors_a_forward_must_save_what_it_takes(effort: float, hoped: float) -> None:
    shared = timed(effort)
    shared.crowded = True
    assert shared.is_worth([(1, hoped)], DRAFT_S) == (hoped * TOKEN_S >= DRAFT_S)
    shared.crowded = False
    assert shared.is_worth([(1, hoped)], DRAFT_S) == timed(effort).is_worth([(1, hoped)], DRAFT_S)


def test_what_is_not_measured_yet_is_worth_it_and_full_effort_declines_nothing() -> None:
    assert Effort(0.0).is_worth([(1, 0.0)], DRAFT_S) and timed(0.0).is_worth([(1, 0.0)], None)
    free = timed(1.0)
    for _ in range(500):
        free.resolved([proposed(1)], stood=False)
    free.crowded = True
    assert free.is_worth([(1, 0.0)], DRAFT_S) and free.drafts


Hopes = list[tuple[int, float]]
"""Levels behind the root, and chances."""
hopes_of_a_commit = st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 1.0)), max_size=6)


@given(st.lists(st.tuples(st.booleans(), hopes_of_a_commit), max_size=30))
def test_the_share_of_hopes_that_came_true_is_that_of_the_whole_history(history: list[tuple[bool, Hopes]]) -> None:
    effort = Effort(0.5)
    for came_true, hopes in history:
        effort.resolved([proposed(ahead, hoped) for ahead, hoped in hopes], came_true)
    for ahead in (1, 2, 5, 12, 30):
        alike = [(true, [hoped for level, hoped in each if band(level) == band(ahead)]) for true, each in history]
        commits = [(true, each) for true, each in alike if each]
        weights = [0.95 ** (len(commits) - turn) for turn in range(len(commits) + 1)]
        stood = weights[0] + sum(w * len(each) * true for w, (true, each) in zip(weights[1:], commits, strict=True))
        hoped = weights[0] + sum(w * sum(each) for w, (_, each) in zip(weights[1:], commits, strict=True))
        assert effort.share(ahead) == pytest.approx(min(1.0, stood / hoped))


def test_a_rejection_that_ends_a_hundred_hopes_does_not_wipe_out_those_that_came_true_before() -> None:
    effort, shares = Effort(0.5), []
    for _ in range(20):
        for _ in range(10):
            effort.resolved([proposed(5, 0.1)], stood=True)
        effort.resolved([proposed(5, 0.1)] * 100, stood=False)
        shares.append(effort.share(5))
    assert min(shares) > 0.6, "ten of eleven came true"


def band(ahead: int) -> int:
    return next(place for place, least in enumerate((16, 8, 4, 2, 1)) if ahead >= least)


def test_a_draft_that_is_never_accepted_is_tried_ever_more_rarely_and_comes_back_at_once() -> None:
    effort, gaps, since = timed(0.5), [], 0
    for _ in range(1200):
        effort.committed(1, TOKEN_S, 0.0)
        since += 1
        if effort.is_worth([(1, 1.0)], DRAFT_S):
            effort.ran()
            effort.resolved([proposed(1)], stood=False)
            gaps.append(since)
            since = 0
    tries = [gap for gap in gaps if gap > 1]
    assert tries == [min(SELDOM[0] << turn, SELDOM[1]) for turn in range(len(tries))] and len(tries) >= 5
    for _ in range(SELDOM[1]):
        effort.committed(1, TOKEN_S, 0.0)
    assert effort.is_worth([(1, 1.0)], DRAFT_S)
    for _ in range(40):
        effort.ran()
        effort.resolved([proposed(1)], stood=True)
    assert effort.is_worth([(1, 1.0)], DRAFT_S)


def answers(effort: Effort, seconds: dict[bool, float], count: int) -> list[bool]:
    """Answer questions of one token with drafts or without, as it chooses; passes take `seconds[False]`."""
    choices = []
    for _ in range(count):
        drafts = effort.drafts
        effort.committed(1, seconds[drafts], seconds[False])
        effort.answered(DecodingStats(tokens=1, total_s=seconds[drafts]), drafts)
        choices.append(drafts)
    return choices


def test_where_drafting_is_slower_the_edge_leaves_off_after_one_step_and_tries_rarely() -> None:
    choices = answers(timed(0.5), {True: 1.2, False: 1.0}, 400)
    tries = [turn for turn, drafts in enumerate(choices) if drafts]
    gaps = [later - earlier for earlier, later in pairwise(tries[1:])]
    assert tries[0] == 0 and tries[1] == STEPS[0] + 2
    assert all(earlier <= later for earlier, later in pairwise(gaps)) and gaps[-1] == STEPS[1] + 1


def test_where_drafting_is_much_faster_no_step_is_spent_on_trying_without() -> None:
    assert all(answers(timed(0.5), {True: 0.6, False: 1.0}, 100))
    tries = [turn for turn, drafts in enumerate(answers(timed(0.5), {True: 0.9, False: 1.0}, 100)) if not drafts]
    assert tries == [1, 2 + 2 * STEPS[0], 3 + 6 * STEPS[0]]


def test_a_gain_that_went_is_noticed_and_one_that_came_back_too() -> None:
    effort, seconds = timed(0.5), {True: 0.9, False: 1.0}
    answers(effort, seconds, 20)
    seconds[True] = 1.0 / GAIN + 0.2
    assert answers(effort, seconds, 40).count(True) < 10
    seconds[True] = 0.5
    assert answers(effort, seconds, 300)[-100:].count(False) == 0


@pytest.mark.parametrize("effort", [0.0, 0.5])
def test_a_useless_draft_costs_next_to_no_forwards_and_no_time(effort: float) -> None:
    recording = Synthetic(tokens=60, acceptance=0.002, second=0.0).draw(3)
    timings = Timings(draft_s=0.02, verify_s=0.1, one_way_s=0.03)
    plain, full = (
        [each.stats for each in decode(recording, timings, drafting(mode, recording, **changes))]
        for mode, changes in (("cloud", {}), ("full", {"effort": effort}))
    )
    assert sum(each.draft_forwards for each in full) < 0.25 * sum(each.tokens for each in full)
    assert sum(each.total_s for each in full) < 1.02 * sum(each.total_s for each in plain)
