"""A session's pace, and what its acts leave behind."""

from __future__ import annotations

import pytest

from cloud_verifier.experience import Pace, Part

OWN = Part(4, 3.0, 1.0)


def test_the_pace_begins_as_that_of_drafting_here_and_is_never_below_it() -> None:
    pace = Pace()
    assert pace.rate(OWN) == 3.0
    for turn in range(100):
        pace.committed("verify", 5, float(turn))
    assert pace.rate(OWN) == pytest.approx((5.0 * 32 + 3.0 * 8) / (32 + 8), rel=0.05)
    for turn in range(100, 300):
        pace.committed("decode", 1, float(turn))
    assert pace.rate(OWN) == 3.0


def test_an_act_is_worth_more_where_good_cycles_follow_it() -> None:
    """A verified draft of the edge leaves the next one at hand; a draft made here does not."""
    pace, now = Pace(), 0.0
    for _ in range(50):
        for act, tokens, seconds in (("verify", 2, 0.5), ("verify", 4, 0.5), ("self", 3, 1.0)):
            now += seconds
            pace.committed(act, tokens, now)
    rate = pace.rate(OWN)
    same = Part(1, 2.0, 0.5)
    assert pace.advantage("verify", same, rate) > pace.advantage("self", same, rate)


def test_steps_follow_nothing_and_what_is_not_chosen_fades() -> None:
    pace = Pace()
    for step in range(20):
        pace.clear()
        pace.committed("self", 9, 100.0 * step)
    assert pace.rate(OWN) == 3.0  # one commit a step is no cycle
    pace.committed("self", 9, 1901.0)
    before = pace.advantage("self", OWN, 3.0)
    for _ in range(200):
        pace.forget("self")
    assert before > 0.5 and pace.advantage("self", OWN, 3.0) == pytest.approx(0.0, abs=0.01)


def test_a_phase_of_the_edge_lasts_while_it_keeps_up_and_failed_ones_come_rarely() -> None:
    pace, now = Pace(), 0.0

    def cycles(count: int, tokens: int) -> None:
        nonlocal now
        for _ in range(count):
            now += 1.0
            pace.committed("self", tokens, now)

    cycles(10, 4)
    pace.try_edge(9.0)
    assert not pace.edge_leads  # too soon
    cycles(10, 4)
    pace.try_edge(3.9)
    assert not pace.edge_leads  # it promises too little
    pace.try_edge(4.1)
    assert pace.edge_leads
    cycles(3, 1)
    assert pace.edge_leads
    cycles(2, 1)
    assert not pace.edge_leads and pace.rate(OWN) > 3.5  # five cycles, three tokens less each
    cycles(40, 4)
    pace.try_edge(9.0)
    assert not pace.edge_leads
    cycles(40, 4)
    pace.try_edge(9.0)
    assert pace.edge_leads
    cycles(100, 5)
    assert pace.edge_leads
    cycles(10, 1)
    assert not pace.edge_leads
    cycles(20, 4)
    pace.try_edge(9.0)
    assert pace.edge_leads  # it has paid before


def test_a_phase_of_the_edge_ends_after_many_cycles_too() -> None:
    """The pace before it may have been that of a bad time, which nothing that follows falls behind."""
    pace = Pace()
    for turn in range(20):
        pace.committed("self", 1, 30.0 * turn)
    pace.try_edge(9.0)
    assert pace.edge_leads
    for turn in range(200):
        pace.committed("decode", 1, 600.0 + turn)
    assert not pace.edge_leads
