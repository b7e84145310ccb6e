"""Bytes under way, as the kernel counts them, on real loopback connections."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculation.connection import Undelivered, hang_up, received_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count is Linux's")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    for each in (client, server):
        each.settimeout(10.0)
    yield client, server
    for each in (listener, client, server):
        each.close()


def send(client: socket.socket, server: socket.socket, size: int) -> None:
    """Send and read, so that the kernel has counted."""
    client.sendall(bytes(size))
    left = size
    while left:
        left -= len(server.recv(left))


def test_received_bytes_are_counted_and_nothing_else_is(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    client, server = pair
    send(client, server, 1000)
    assert received_bytes(server.fileno()) == 1000 and received_bytes(client.fileno()) == 0
    with (tmp_path / "file").open("w") as file:
        assert received_bytes(file.fileno()) is None
        assert os.fstat(file.fileno()), "a descriptor that is only looked at stays open"
    left, right = socket.socketpair()
    assert received_bytes(left.fileno()) is None and received_bytes(-1) is None
    left.close()
    right.close()


def test_what_is_delivered_is_not_under_way_and_the_count_does_not_drift(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = pair
    count = Undelivered(server.fileno())
    for _ in range(50):  # each message has 9 bytes of header that nobody reports
        send(client, server, 109)
        count.deliver(100)
        assert count.size() == 9
        count.drained()
        assert count.size() == 0
    send(client, server, 5000)
    count.drained()
    assert count.size() == 5000, "nothing was delivered: all of it is under way"


def test_a_connection_is_hung_up_unless_it_is_another_one(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    port = server.getsockname()[1]
    hang_up(server.fileno(), port + 1)
    send(client, server, 1)
    hang_up(server.fileno(), port)
    assert client.recv(1) == b"" and server.fileno() >= 0
    hang_up(-1)
