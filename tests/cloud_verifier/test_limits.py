"""Allowance: so much at once, so much a second, for each on its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.limits import Allowance, Inboxes, Rate


def test_keys_of_long_ago_are_forgotten() -> None:
    allowance = Allowance(1.0, 1)
    for key in range(Allowance.MOST_KEYS + 1):
        allowance.take(key, 0.0)
    assert allowance.left(0, 0.0) == 1.0 and allowance.left(1, 0.0) == 0.0


@given(st.lists(st.floats(0.0, 1.0), max_size=50), st.integers(1, 5), st.floats(0.1, 10.0))
def test_never_more_than_burst_and_rate(gaps: list[float], burst: int, rate: float) -> None:
    allowance, now, taken = Allowance(rate, burst), 0.0, 0
    for gap in gaps:
        now += gap
        taken += allowance.take("x", now)
        assert taken <= burst + rate * now + 1e-6


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 50.0)), max_size=60), st.floats(0.5, 20.0))
def test_what_is_used_in_time_is_never_more_than_the_quota(uses: list[tuple[float, float]], per_s: float) -> None:
    """But for the last use, which may be of any size."""
    rate, now, used, largest = Rate(per_s, 4.0), 0.0, 0.0, 0.0
    for gap, amount in uses:
        now += gap
        if rate.wait("x", now) == 0.0:
            rate.use("x", amount, now)
            used, largest = used + amount, max(largest, amount)
        assert used <= per_s * (now + 4.0) + largest + 1e-6


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=60, max_size=120),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_shares_are_equal_in_bytes_among_those_that_wait(mail: list[tuple[int, int]], sharers: list[int]) -> None:
    """While several sharers have mail, none is ahead of another by more than two rounds and a message, whatever its
    number of peers; each peer's messages keep their order, and none is lost."""
    boxes, sent = Inboxes(20), dict[bytes, list[bytes]]()
    for number, (peer, size) in enumerate(mail):
        name, payload = b"%d" % peer, b"%03d" % number + bytes(size)
        assert boxes.put(name, sharers[peer], [payload], 1000, 1 << 20)
        sent.setdefault(name, []).append(payload)
    waiting = {name: list(payloads) for name, payloads in sent.items()}
    taken = dict.fromkeys({sharers[int(name)] for name in sent}, 0)
    got: dict[bytes, list[bytes]] = {}
    while True:
        busy = {sharers[int(name)] for name, left in waiting.items() if left}
        if busy == taken.keys() and len(taken) > 1:
            assert max(taken.values()) - min(taken.values()) <= 2 * (20 + 43) + 43
        if (out := boxes.pop()) is None:
            break
        name, (payload,) = out
        assert waiting[name].pop(0) == payload
        taken[sharers[int(name)]] += len(payload)
        got.setdefault(name, []).append(payload)
    assert got == sent and not len(boxes)


def test_a_peer_that_is_dropped_leaves_nothing_behind() -> None:
    boxes = Inboxes(10)
    boxes.put(b"a", "go2", [b"1"], 9, 99)
    boxes.put(b"b", "go2", [b"2"], 9, 99)
    assert not boxes.put(b"b", "go2", [b"3"], 1, 99) and not boxes.put(b"b", "go2", [b"3" * 99], 9, 99)
    boxes.drop(b"a")
    boxes.drop(b"a")
    assert list(boxes) == [b"b"] and boxes.pop() == (b"b", [b"2"]) and boxes.pop() is None
