"""Allowance: so much at once, so much a second, for each on its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.limits import Allowance, Inboxes, Rate


def test_a_burst_then_the_rate_and_nobody_elses_share() -> None:
    allowance = Allowance(2.0, 3)
    assert [allowance.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.take("b", 0.0)
    assert not allowance.take("a", 0.4) and allowance.take("a", 0.5) and not allowance.take("a", 0.5)
    assert allowance.left("a", 100.0) == 3.0


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


def test_a_quota_is_paid_off_before_the_next_use_however_large_the_first_was() -> None:
    rate = Rate(10.0, 2.0)
    assert rate.use("a", 1000.0, 0.0) == 0.0
    assert rate.wait("a", 0.0) == 98.0 and rate.wait("b", 0.0) == 0.0
    assert rate.wait("a", 98.0) == 0.0 and rate.wait("a", 97.0) == 1.0


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


def test_a_peer_with_large_messages_waits_for_those_with_small_ones() -> None:
    """Eight messages of 4 MB beside ten of 50 bytes: the small ones are out before the second large one."""
    boxes = Inboxes(16 << 10)
    for _ in range(8):
        assert boxes.put(b"large", b"large", [bytes(4_000_000)], 256, 1 << 30)
    for number in range(10):
        assert boxes.put(b"small", b"small", [b"%d" % number * 50], 256, 1 << 20)
    out = [mail[0] for _ in range(18) if (mail := boxes.pop()) is not None]
    assert out[:10] == [b"small"] * 10 and out[10:] == [b"large"] * 8 and boxes.pop() is None and not len(boxes)


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
