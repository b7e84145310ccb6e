"""The exit queue against a slow twin, and the promises that a reader of the paper would look for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.exit_queue import ExitQueue, QueuePolicy
from speculation.wire import EarlyTokens


def early(layer: int, token: int, confidence: float = 0.5, round: int = 1, node: int = 0) -> EarlyTokens:
    return EarlyTokens(1, round, 0, node, token, layer, confidence)


class SlowQueue:
    """Twin: every push ever made in one list; who may leave is decided from the whole history on every pop."""

    def __init__(self, policy: QueuePolicy, rate: float, burst: int) -> None:
        self.policy, self.rate, self.burst = policy, rate, burst
        self.history: list[tuple[str, int, EarlyTokens | None, float]] = []

    def push(self, session: int, item: EarlyTokens, now: float) -> None:
        self.history.append(("push", session, item, now))

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
                if self.policy is QueuePolicy.PRIORITY:
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
        if self.policy is QueuePolicy.PRIORITY:
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
    fast, slow = ExitQueue(policy, rate, burst), SlowQueue(policy, rate, burst)
    for kind, *args in events:
        if kind == "push":
            session, token, round, confidence = args
            layer += 1
            item = early(layer % 1000, token, confidence, round)
            fast.push(session, item)
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
