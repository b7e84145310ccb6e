"""When a goal is sent, sent again, cancelled and given up, on given time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.client import (
    ANSWER_S,
    GONE_S,
    LOST_S,
    PROBE_S,
    SERVER_S,
    STARTING_S,
    STOP_S,
    Do,
    GoalEnd,
    Order,
    Outcome,
    Progress,
    Pursuit,
    Request,
    instruction_of,
)
from spec_vlm_nav.goal_file import RESUME_MOST_S

BALL = Request("find the red ball", time_s=100.0, max_actions=10)
FOUND = GoalEnd(Outcome.FOUND, "NONE", "")
INACTIVE = GoalEnd(Outcome.REFUSED, "NOT_ACTIVE", "vlm_nav is not active")
LEFT, RIGHT = "turn left large", "turn right small"


def taken(request: Request = BALL) -> Pursuit:
    """Return a pursuit whose goal a server took at 0 s."""
    pursuit = Pursuit(request, 0.0)
    pursuit.server(True)
    assert pursuit.step(0.0) == [Order(Do.SEND, 1)]
    pursuit.answered(1, True, 0.0)
    assert pursuit.step(0.0) == [Order(Do.ASK, 1)]
    return pursuit


def run(pursuit: Pursuit, start: float, seconds: float) -> list[tuple[float, Order]]:
    """Return the orders of so many seconds, with their times."""
    times = [start + 0.1 * tick for tick in range(int(seconds * 10) + 1)]
    return [(now, order) for now in times for order in pursuit.step(now)]


def test_a_restarted_server_is_asked_for_the_goal_that_it_goes_on_with() -> None:
    pursuit = taken()
    pursuit.feedback(1, Progress(state="moving", done=(LEFT, RIGHT)), 20.0)
    asked = run(pursuit, 20.0, 10.0)
    assert asked and {order.do for _, order in asked} == {Do.ASK} and "silent" in pursuit.note
    pursuit.unknown(1, 30.0)
    assert {order.do for _, order in run(pursuit, 30.0, LOST_S - 1.0)} == {Do.ASK}, "it may not have read its file yet"
    pursuit.feedback(1, Progress(state="holding", done=(LEFT, RIGHT)), 36.0)
    assert pursuit.step(36.0) == [Order(Do.ASK, 1)], "the questions before may have been to the one that died"
    run(pursuit, 36.1, LOST_S + 1.0)
    assert pursuit.end is None
    pursuit.result(1, FOUND, 60.0)
    assert pursuit.end == FOUND


def test_a_server_that_is_not_active_is_asked_again_for_a_moment_and_for_as_long_as_it_starts() -> None:
    fresh = taken()
    fresh.result(1, INACTIVE, SERVER_S - 1.0)
    assert [order.do for _, order in run(fresh, SERVER_S - 1.0, 1.5)] == [Do.SEND], "a slow machine is no reason"
    fresh.answered(2, True, SERVER_S)
    fresh.result(2, INACTIVE, SERVER_S - 1.0 + STARTING_S + 0.1)
    assert fresh.end == INACTIVE, "nobody reports that it starts"
    driven = taken()
    driven.feedback(1, Progress(state="moving"), 1.0)
    driven.result(1, INACTIVE, 2.0)
    assert driven.end == INACTIVE, "a goal that was under way is not begun anew"
    starting = taken()
    starting.result(1, INACTIVE, 0.1)
    assert starting.end is None, "the first report may not be there yet"
    for second in range(1, 100):
        starting.starting("vlm_nav is asked to configure (it loads the draft model)", float(second))
        assert not run(starting, float(second), 0.9), "it is sent when the node can take it"
    assert "loads the draft model" in starting.note and starting.end is None
    starting.starting("", 100.0)
    ((_, order),) = run(starting, 100.0, 0.1)
    assert order == Order(Do.SEND, 2)
    stuck = Pursuit(BALL, 0.0)
    stuck.starting("vlm_nav is asked to configure", 50.0)
    assert not run(stuck, 50.0, SERVER_S + 1.0) and stuck.end is not None
    assert (
        stuck.end.message == "no active action server for 10 s; its last report was that vlm_nav is asked to configure"
    )


def test_what_never_comes_back_ends_the_goal() -> None:
    nobody = Pursuit(BALL, 0.0)
    assert not run(nobody, 0.0, SERVER_S + 1.0)
    assert nobody.end is not None and nobody.end.outcome is Outcome.REFUSED and nobody.end.stopped
    dead = taken()
    orders = run(dead, 0.1, GONE_S + 1.0)
    assert orders[-1][1].do is Do.CANCEL and dead.end is not None and not dead.end.stopped


def test_an_unanswered_goal_is_sent_again_and_a_late_acceptance_is_cancelled() -> None:
    pursuit = Pursuit(BALL, 0.0)
    pursuit.server(True)
    sent = run(pursuit, 0.0, ANSWER_S + 1.0)
    assert [order.attempt for _, order in sent] == [1, 2]
    pursuit.answered(2, True, 6.0)
    pursuit.answered(1, True, 6.1)
    assert Order(Do.CANCEL, 1) in pursuit.step(6.2)
    pursuit.result(2, FOUND, 6.3)
    pursuit.answered(1, True, 7.0)
    assert pursuit.step(7.1) == [Order(Do.CANCEL, 1)]


def test_cancelling_waits_for_the_end_and_does_not_wait_for_ever() -> None:
    pursuit = taken()
    pursuit.cancel(1.0)
    assert pursuit.step(1.0) == [Order(Do.CANCEL, 1), Order(Do.ASK, 1)] and not pursuit.step(1.1)
    assert Order(Do.CANCEL, 1) in pursuit.step(2.1), "the first may have been lost"
    end = GoalEnd(Outcome.CANCELLED, "CANCELLED", "cancelled")
    pursuit.result(1, end, 2.2)
    assert pursuit.end == end
    deaf = taken()
    deaf.cancel(1.0)
    for tenth in range(10, int(10 * STOP_S) + 20):
        deaf.heartbeat(0.1 * tenth)
        deaf.step(0.1 * tenth)
    assert deaf.end is not None and deaf.end.outcome is Outcome.CANCELLED and not deaf.end.stopped
    restarted = taken()
    restarted.cancel(1.0)
    restarted.unknown(1, 3.0)
    run(restarted, 3.0, LOST_S + 0.5)
    assert restarted.end is not None and restarted.end.outcome is Outcome.CANCELLED and not restarted.end.stopped
    dead = taken()
    dead.cancel(PROBE_S + 1.0)
    told = [now for now, order in run(dead, PROBE_S + 1.0, 200.0) if order.do is Do.CANCEL]
    assert max(told) > RESUME_MOST_S and dead.end is not None, "it would go on with the goal when it is back"
    early = Pursuit(BALL, 0.0)
    early.server(True)
    early.step(0.0)
    early.cancel(0.1)
    assert not early.step(0.2) and early.end is None, "the answer is awaited"
    early.answered(1, True, 0.3)
    assert Order(Do.CANCEL, 1) in early.step(0.4)


WHAT = ["up", "down", "yes", "no", "unknown", "inactive", "found", "beat", "feedback", "cancel", "start", "begun"]
EVENTS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 3), st.floats(0.01, 8.0)), max_size=60)


@given(EVENTS)
def test_no_order_of_events_sends_a_goal_after_a_cancel_or_an_end(events: list[tuple[str, int, float]]) -> None:
    pursuit, now, sent, taken_by = Pursuit(BALL, 0.0), 0.0, 0, set[int]()
    cancelled_at: float | None = None
    for event, back, seconds in events:
        now += seconds
        attempt = sent - back
        ended = pursuit.end
        if event in ("up", "down"):
            pursuit.server(event == "up")
        elif event in ("yes", "no") and attempt > 0 and attempt not in taken_by:
            taken_by.add(attempt)
            pursuit.answered(attempt, event == "yes", now)
        elif event == "unknown":
            pursuit.unknown(attempt, now)
        elif event in ("inactive", "found"):
            pursuit.result(attempt, INACTIVE if event == "inactive" else FOUND, now)
        elif event == "beat":
            pursuit.heartbeat(now)
        elif event == "feedback":
            pursuit.feedback(attempt, Progress(done=(LEFT,)), now)
        elif event in ("start", "begun"):
            pursuit.starting("vlm_nav is not up yet" if event == "start" else "", now)
        elif event == "cancel":
            pursuit.cancel(now)
            cancelled_at = now if cancelled_at is None else cancelled_at
        for order in pursuit.step(now):
            if order.do is Do.SEND:
                assert ended is None and cancelled_at is None and order.attempt == sent + 1
                sent += 1
            else:
                assert 0 < order.attempt <= sent
        if ended is not None:
            assert pursuit.end is ended, "an end is final"
        if cancelled_at is not None and now > cancelled_at + RESUME_MOST_S + 2 * STOP_S:
            pursuit.step(now)
            assert pursuit.end is not None, "a cancelled goal ends"


@pytest.mark.parametrize(
    ("words", "instruction"),
    [
        ("the red ball", "find the red ball"),
        ("  the   red\nball ", "find the red ball"),
        ("finder", "find finder"),
        ("could you look for a green chair?", "could you look for a green chair?"),
        ("la bouteille argentée", "find la bouteille argentée"),
        ("suche den roten Ball", "suche den roten Ball"),
        ("not the red ball", "not the red ball"),
        ("arrête-toi", "arrête-toi"),
    ],
)
def test_words_become_an_instruction(words: str, instruction: str) -> None:
    assert instruction_of(words) == instruction


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"time_s": -1.0}, "time_s"), ({"time_s": float("nan")}, "time_s"), ({"max_actions": 70000}, "max_actions")],
)
def test_a_request_beyond_its_limits_is_refused_by_name(fields: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Request("find the red ball", **fields)  # type: ignore[arg-type]
