"""Whose message is it? Descriptors and routing ids come again; sessions must not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.connections import MOST_GONE, Connections

A, B, GIVEN = b"rex", b"fido", b"\0\0\0\0\1"


def test_a_connection_keeps_its_peer_and_a_new_one_gets_another() -> None:
    table = Connections(1000)
    first = table.accept(7)
    assert table.deliver(7, A, 10) is first and table.deliver(7, A, 10) is first
    table.close(7)
    assert not first.alive and table.of_peer(first.peer) is None and len(table) == 0
    second = table.accept(7)
    assert second.peer != first.peer and table.deliver(7, A, 10) is second
    assert table.of_peer(second.peer) is second


def test_a_routing_id_that_comes_again_ends_what_had_it() -> None:
    table = Connections(1000)
    first, second = table.accept(7), table.accept(8)
    assert table.deliver(7, A, 1) is first
    assert table.deliver(8, A, 1) is second
    assert not first.alive and second.alive


def test_mail_of_a_connection_that_is_gone_is_nobodys() -> None:
    table = Connections(1000)
    gone = table.accept(7)
    assert table.deliver(7, GIVEN, 1) is gone
    table.close(7)
    assert table.deliver(7, GIVEN, 1) is None
    fresh = table.accept(7)
    assert table.deliver(7, GIVEN, 1) is None, "an id that ZeroMQ gave never comes again"
    assert table.deliver(7, B, 1) is fresh


def test_gone_ids_are_forgotten_in_the_end() -> None:
    table = Connections(1000)
    for number in range(MOST_GONE + 10):
        table.accept(7)
        table.deliver(7, b"\0%d" % number, 1)
    table.close(7)
    assert table.deliver(7, b"\0%d" % MOST_GONE, 1) is None
    assert table.deliver(7, b"\x000", 1) is not None


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
            assert table.of_peer(connection.peer) is connection and connection.alive
        table.drained()
