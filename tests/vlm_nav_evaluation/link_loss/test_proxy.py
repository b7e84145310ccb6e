"""The proxy on real sockets: passes, cuts, delays, garbles, and goes on afterwards."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from vlm_nav_evaluation.link_loss.faults import Kind
from vlm_nav_evaluation.link_loss.proxy import Proxy

DELAY_S, LIMIT_S = 0.3, 60.0


class Watched(Proxy):
    """A proxy whose test knows when it has taken bytes: the machine may be too busy for it to do so at once."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(target, DELAY_S)
        self._taken = threading.Semaphore(0)

    def takes(self, times: int = 1) -> None:
        """Wait until bytes were taken so many times more."""
        for _ in range(times):
            assert self._taken.acquire(timeout=LIMIT_S)

    def _relay(self, one: socket.socket) -> None:
        super()._relay(one)
        self._taken.release()


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends everything back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        while data := connection.recv(4096):
            connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[:2]
    listener.close()


def connect(proxy: Proxy, timeout: float = LIMIT_S) -> socket.socket:
    host, port = proxy.address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout)


def test_a_cut_keeps_the_connection_and_loses_what_is_sent(echo: tuple[str, int]) -> None:
    with Watched(echo) as proxy, connect(proxy) as peer:
        peer.sendall(b"one")
        assert peer.recv(16) == b"one"
        proxy.takes(2)
        proxy.fault = Kind.CUT
        peer.sendall(b"two")
        proxy.takes()
        proxy.fault = None
        peer.sendall(b"three")
        assert peer.recv(16) == b"three"


def test_a_delay_holds_each_way_and_keeps_the_order(echo: tuple[str, int]) -> None:
    with Watched(echo) as proxy, connect(proxy) as peer:
        proxy.fault = Kind.DELAY
        began = time.monotonic()
        peer.sendall(b"a")
        proxy.takes()
        proxy.fault = None
        peer.sendall(b"b")
        got = b""
        while len(got) < 2:
            got += peer.recv(16)
        assert got == b"ab" and time.monotonic() - began >= DELAY_S


def test_garbled_bytes_all_differ() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(listener.getsockname()[:2], DELAY_S) as proxy:
        proxy.fault = Kind.GARBAGE
        with connect(proxy) as peer:
            server, _ = listener.accept()
            with server:
                peer.sendall(bytes(range(8)))
                got = server.recv(16)
    assert len(got) == 8 and all(byte != place for place, byte in enumerate(got))


def test_without_a_server_the_connection_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        target = free.getsockname()[:2]
    with Proxy(target, DELAY_S) as proxy, connect(proxy) as peer:
        assert peer.recv(16) == b""
