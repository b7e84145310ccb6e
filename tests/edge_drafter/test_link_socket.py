"""A verifier's name with several addresses: which of them is tried next."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from edge_drafter.link_socket import LinkSocket
from tests.edge_drafter.waiting import wait_for

PLACES = ["127.0.0.2", "127.0.0.1"]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def verifier(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Listens at the second of the places only."""
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"tcp://{PLACES[1]}:*")
    return socket


def place_of(connection: LinkSocket) -> str:
    return connection._socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://").partition(":")[0]


def test_an_address_that_says_nothing_is_left_and_one_that_accepts_is_kept(
    context: zmq.Context[zmq.Socket[bytes]], verifier: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_drafter.link_socket.resolve", lambda host: PLACES)
    address = f"tcp://robot-server:{verifier.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(':')[2]}"
    connection = LinkSocket(context, address, None)
    try:
        assert place_of(connection) == PLACES[0]
        # No turn: nothing of this connection is known, as where its packets are dropped.
        connection.reopen(address, None)
        assert place_of(connection) == PLACES[1]

        def shaken() -> bool:
            assert not list(connection.turn(time.monotonic()))
            return connection.is_new

        wait_for(shaken)
        connection.reopen(address, None)
        assert place_of(connection) == PLACES[1]
        connection.reopen(address.replace("robot-server", "another"), None)
        assert place_of(connection) == PLACES[0]
    finally:
        connection.close()
