"""Effort of drafting: what is worth a forward, what is left alone, and how rarely that is tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter.draft_effort import SELDOM, Effort
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


def test_a_token_takes_what_commits_took_over_what_they_brought() -> None:
    assert Effort().token_s is None
    found = timed(1.0)
    found.committed(3, TOKEN_S, 0.0)
    assert found.token_s == pytest.approx(2.0 * TOKEN_S / 4.0, rel=0.05)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_forward_runs_where_what_it_may_save_pays_its_price(effort: float, hoped: float) -> None:
    assert timed(effort).is_worth([(1, hoped)], DRAFT_S) == (hoped * TOKEN_S >= (1.0 - effort) * DRAFT_S)


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
