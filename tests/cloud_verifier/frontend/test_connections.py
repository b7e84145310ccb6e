"""Whose message is it? Descriptors and routing ids come again; sessions must not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.frontend.connections import MOST_SESSIONLESS, SESSIONLESS_BYTES, SESSIONLESS_S, Connections

A, B, GIVEN = b"rex", b"fido", b"\0\0\0\0\1"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("acd"), st.integers(1, 3), st.sampled_from([A, B, GIVEN])), max_size=60))
def test_no_peer_is_ever_two_connections(events: list[tuple[str, int, bytes]]) -> None:
    """Whatever is accepted, closed and delivered: a peer has one descriptor and one routing id, for good."""
    table = Connections(1000)
    seen: dict[bytes, tuple[int, bytes]] = {}
    for what, fd, routing_id in events:
        if what == "a":
            table.accept(fd)
        elif what == "c":
            table.close(fd)
        elif (connection := table.deliver(fd, routing_id, 1)) is not None:
            assert seen.setdefault(connection.peer, (fd, routing_id)) == (fd, routing_id)
            assert table.of_peer(connection.peer) is connection
        table.drained()


def test_connections_that_are_of_no_use_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too much under way, too long an id, too long or too many without a session; a session may have more and stay."""
    received = dict.fromkeys(range(1000), 0)
    monkeypatch.setattr("speculation.connection.received_bytes", received.get)
    now = 0.0
    table = Connections(2 * SESSIONLESS_BYTES, lambda: now)
    table.accept(1)
    table.deliver(1, b"\0aaaa", 1)
    table.admit(table.accept(2).peer, True)
    received[1] = received[2] = SESSIONLESS_BYTES + 100
    (ended,) = table.unwanted()
    assert ended[0].fd == 1 and "no whole message" in ended[1]
    table.close(1)
    received[2] = 0
    table.accept(3)
    table.deliver(3, b"x" * 1_000_000, 1)
    (ended,) = table.unwanted()
    assert ended[0].fd == 3 and "routing id" in ended[1] and len(ended[0].routing_id or b"") < 1000
    table.close(3)
    table.accept(4)
    assert table.unwanted() == []
    now = SESSIONLESS_S + 1.0
    (ended,) = table.unwanted()
    assert ended[0].fd == 4 and "no session for" in ended[1]
    table.close(4)
    for fd in range(10, 10 + MOST_SESSIONLESS + 3):
        table.accept(fd)
    assert [each.fd for each, _ in table.unwanted()] == [10, 11, 12]


def test_a_clients_connections_are_found_and_so_are_those_whose_key_is_not_known_yet() -> None:
    """Whoever shook hands and sent nothing may have the key that was taken back."""
    table = Connections(1000, number=3)
    first, silent, other = (table.accept(fd) for fd in (1, 2, 3))
    table.deliver(1, A, 1, "go2-7")
    table.deliver(3, B, 1, "go2-8")
    assert table.of_client("go2-7") == [first, silent] and table.of_client("go2-8") == [silent, other]
    for connection in (first, silent):
        table.close(connection.fd)
    assert table.ended == [first.peer], "nobody knows of one that has sent nothing"
    assert Connections(1000, number=4).accept(1).peer != first.peer, "another frontend's peers have other names"
