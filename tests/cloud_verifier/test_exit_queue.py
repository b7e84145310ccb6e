"""The exit queue against a slow twin, and the promises that a reader of the paper would look for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.exit_queue import ExitQueue, QueuePolicy
from speculation.wire import EarlyTokens


def early(layer: int, token: int, confidence: float = 0.5, round: int = 1, node: int = 0) -> EarlyTokens:
    return EarlyTokens(1, round, 0, node, token, layer, confidence)


def drain(queue: ExitQueue, now: float) -> list[EarlyTokens]:
    out = []
    while (item := queue.pop(now)) is not None:
        out.append(item[1])
    return out


def test_the_most_confident_session_goes_first() -> None:
    queue = ExitQueue()
    for session, confidence in enumerate((0.2, 0.9, 0.5)):
        queue.push(session, early(3, 1, confidence), 0.0)
    assert [e.confidence for e in drain(queue, 0.0)] == [0.9, 0.5, 0.2]


def test_a_newer_and_less_confident_verdict_does_not_replace_a_waiting_one() -> None:
    queue = ExitQueue(rate=1.0, burst=1)
    queue.push(0, early(1, 5, 0.2), 0.0)
    assert [e.layer for e in drain(queue, 0.0)] == [1]
    for layer, confidence in ((2, 0.6), (3, 0.9), (4, 0.1)):
        queue.push(0, early(layer, layer, confidence), 0.0)
    left = [early.layer for now in (0.5, 1.0, 2.0, 3.0, 4.0) for early in drain(queue, now)]
    assert left == [3, 2, 4] and (queue.sent, queue.dropped) == (4, 0)


def test_a_waiting_verdict_takes_the_confidence_of_the_exit_that_is_surest_of_it() -> None:
    queue = ExitQueue()
    for layer, token, confidence in ((1, 5, 0.3), (2, 6, 0.5), (3, 5, 0.9), (4, 5, 0.4)):
        queue.push(0, early(layer, token, confidence), 0.0)
    assert [(e.layer, e.token) for e in drain(queue, 0.0)] == [(3, 5), (2, 6)]
    assert (queue.sent, queue.dropped) == (2, 2) and queue.next_time(0.0) is None


def test_the_newest_verdict_replaces_a_waiting_one_under_its_own_policy() -> None:
    queue = ExitQueue(QueuePolicy.NEWEST, rate=1.0, burst=1)
    queue.push(0, early(1, 5, 0.9), 0.0)
    assert [e.layer for e in drain(queue, 0.0)] == [1]
    queue.push(0, early(2, 6, 0.9), 0.0)
    queue.push(0, early(3, 7, 0.3), 0.0)
    assert drain(queue, 0.5) == [] and [e.layer for e in drain(queue, 1.0)] == [3]
    assert (queue.sent, queue.dropped) == (2, 1)


@pytest.mark.parametrize("policy", list(QueuePolicy))
def test_a_verdict_that_was_sent_is_not_repeated(policy: QueuePolicy) -> None:
    queue = ExitQueue(policy, rate=1.0, burst=1)
    queue.push(0, early(1, 5), 0.0)
    drain(queue, 0.0)
    queue.push(0, early(2, 5, 0.9), 0.0)
    assert drain(queue, 10.0) == [] and queue.next_time(10.0) is None


def test_the_newest_withdraws_a_waiting_doubt_about_what_was_sent() -> None:
    queue = ExitQueue(QueuePolicy.NEWEST, rate=1.0, burst=1)
    queue.push(0, early(1, 5), 0.0)
    drain(queue, 0.0)
    queue.push(0, early(2, 6), 0.0)
    queue.push(0, early(3, 5), 0.0)
    assert drain(queue, 10.0) == [] and queue.next_time(10.0) is None


def test_a_new_round_may_repeat_what_the_last_one_had() -> None:
    queue = ExitQueue()
    queue.push(0, early(1, 5, round=1), 0.0)
    drain(queue, 0.0)
    queue.push(0, early(1, 5, round=2), 0.0)
    assert [e.round for e in drain(queue, 0.0)] == [2]


def test_what_a_commit_overtook_is_dropped() -> None:
    queue = ExitQueue()
    queue.push(0, early(1, 5), 0.0)
    queue.push(1, early(1, 6), 0.0)
    queue.overtake(0)
    assert [e.token for e in drain(queue, 0.0)] == [6] and queue.dropped == 1


def test_fifo_keeps_the_order_and_replaces_nothing() -> None:
    queue = ExitQueue(QueuePolicy.FIFO)
    for layer, confidence in enumerate((0.1, 0.9, 0.5)):
        queue.push(0, early(layer, layer, confidence), 0.0)
    queue.push(0, early(3, 1), 0.0)
    assert [e.layer for e in drain(queue, 0.0)] == [0, 1, 2]


def test_random_is_the_same_for_the_same_seed_and_loses_nothing() -> None:
    orders = set()
    for seed in (0, 0, 1, 2, 3):
        queue = ExitQueue(QueuePolicy.RANDOM, burst=20, seed=seed)
        for layer in range(8):
            queue.push(0, early(layer, layer), 0.0)
        orders.add((seed, tuple(e.layer for e in drain(queue, 0.0))))
    assert len(orders) == 4 and all(sorted(order) == list(range(8)) for _, order in orders)


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (10.0, 0)])
def test_a_queue_that_could_never_send_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ExitQueue(rate=rate, burst=burst)


class SlowQueue:
    """Twin: every push ever made in one list; who may leave is decided from the whole history on every pop."""

    def __init__(self, policy: QueuePolicy, rate: float, burst: int, seed: int) -> None:
        self.policy, self.rate, self.burst = policy, rate, burst
        self.random = random.Random(seed)
        self.history: list[tuple[str, int, EarlyTokens | None, float]] = []
        self.places: dict[int, float] = {}

    def push(self, session: int, item: EarlyTokens, now: float) -> None:
        self.history.append(("push", session, item, now))
        if self.policy is QueuePolicy.RANDOM and any(waiting is item for waiting in self.waiting(session)):
            self.places[id(item)] = self.random.random()

    def waiting(self, session: int) -> list[EarlyTokens]:
        waiting: list[EarlyTokens] = []
        received: list[tuple[int, int]] = []
        round = None
        for what, who, item, _ in self.history:
            if who != session:
                continue
            if what == "overtake":
                waiting, received, round = [], [], None
            elif what == "sent" and item is not None:
                received.append((item.node, item.token))
                waiting = [w for w in waiting if (w.node, w.token) != received[-1]]
            elif what == "push" and item is not None:
                if (item.step, item.round) != round:
                    waiting, received, round = [], [], (item.step, item.round)
                verdict = (item.node, item.token)
                rivals = [w for w in waiting if (w.node, w.token) == verdict]
                if self.policy is QueuePolicy.NEWEST:
                    waiting = [] if received[-1:] == [verdict] else [item]
                elif self.policy is QueuePolicy.PRIORITY:
                    if verdict not in received and all(w.confidence < item.confidence for w in rivals):
                        waiting = [*(w for w in waiting if w not in rivals), item]
                elif verdict not in received and not rivals:
                    waiting.append(item)
        return waiting

    def budget(self, session: int, now: float) -> float:
        bucket, last, known = float(self.burst), now, False
        for what, who, _, at in self.history:
            if who == session:
                if known:
                    bucket = min(float(self.burst), bucket + (at - last) * self.rate)
                known, last = True, at
                bucket -= what == "sent"
        return min(float(self.burst), bucket + (now - last) * self.rate)

    def pop(self, now: float) -> tuple[int, EarlyTokens] | None:
        pushed = [item for what, _, item, _ in self.history if what == "push"]
        order = {id(item): place for place, item in enumerate(pushed)}
        sessions = sorted({who for _, who, _, _ in self.history})
        ready = [(s, e) for s in sessions if self.budget(s, now) >= 1.0 - 1e-6 for e in self.waiting(s)]
        ready.sort(key=lambda pair: order[id(pair[1])])
        if self.policy is QueuePolicy.RANDOM:
            ready.sort(key=lambda pair: self.places[id(pair[1])])
        elif self.policy is not QueuePolicy.FIFO:
            ready.sort(key=lambda pair: -pair[1].confidence)
        if not ready:
            return None
        self.history.append(("sent", *ready[0], now))
        return ready[0]


confidences = st.sampled_from([0.1, 0.5, 0.9])
events = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 2), st.integers(0, 3), st.integers(1, 3), confidences),
        st.tuples(st.just("overtake"), st.integers(0, 2)),
        st.tuples(st.just("pop")),
        st.tuples(st.just("wait"), st.integers(1, 8)),
    ),
    max_size=40,
)


@given(events, st.sampled_from(QueuePolicy), st.integers(1, 3))
def test_the_queue_is_its_slow_twin(events: list[tuple], policy: QueuePolicy, burst: int) -> None:  # type: ignore[type-arg]
    rate, now, layer, pushed = 2.0, 0.0, 0, 0
    fast, slow = ExitQueue(policy, rate, burst, seed=3), SlowQueue(policy, rate, burst, seed=3)
    for kind, *args in events:
        if kind == "push":
            session, token, round, confidence = args
            layer += 1
            item = early(layer % 1000, token, confidence, round)
            fast.push(session, item, now)
            slow.push(session, item, now)
            pushed += 1
        elif kind == "overtake":
            fast.overtake(args[0])
            slow.history.append(("overtake", args[0], None, now))
        elif kind == "wait":
            now += args[0] / 8.0
        else:
            due = fast.next_time(now)
            got = fast.pop(now)
            assert got == slow.pop(now)
            assert (got is not None) == (due is not None and due <= now)
    for session in range(3):
        fast.overtake(session)
    assert fast.sent + fast.dropped == pushed


@given(st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 5)), max_size=60), st.integers(1, 4))
def test_no_session_sends_faster_than_its_rate(pushes: list[tuple[float, int]], burst: int) -> None:
    queue, now, sent = ExitQueue(QueuePolicy.FIFO, rate=5.0, burst=burst), 0.0, []
    for index, (pause, token) in enumerate(pushes):
        now += pause
        queue.push(0, early(index, token, round=index + 1), now)
        sent += [now] * len(drain(queue, now))
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + 5.0 * (sent[last] - sent[first]) + 1e-6
