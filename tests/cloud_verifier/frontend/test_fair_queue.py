"""Messages are taken out in turns that are fair in bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.frontend.fair_queue import Inboxes


@settings(max_examples=40)
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
