"""A TCP relay in a thread of its own between robot and verifier, that can cut, delay or garble what it passes on."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

from speculation.links import EmulatedWay, WayConditions
from vlm_nav_evaluation.link_loss.faults import Kind

CHUNK = 1 << 16
TURN_S = 0.02


class Proxy:
    """Relays connections to `target`; a context manager. Set `fault` at any time, to None for none.

    A cut closes no connection, as a Wi-Fi that is out of reach; as garbage every byte is changed.
    """

    def __init__(self, target: tuple[str, int], delay_s: float) -> None:
        self.fault: Kind | None = None
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._peers: dict[socket.socket, socket.socket] = {}
        self._delayed, self._prompt = WayConditions(delay_s), WayConditions()
        self._link: EmulatedWay[tuple[socket.socket, bytes]] = EmulatedWay(self._prompt)
        self._end = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for each in (*self._peers, self._listener):
            each.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._end.is_set():
            for key, _ in self._selector.select(TURN_S):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._relay(key.fileobj)  # type: ignore[arg-type]
            while (due := self._link.take(time.monotonic())) is not None:
                out, data = due
                with contextlib.suppress(OSError):
                    out.sendall(data)

    def _accept(self) -> None:
        inside, _ = self._listener.accept()
        try:
            outside = socket.create_connection(self._target, 1.0)
        except OSError:
            inside.close()  # as a machine without a verifier answers
            return
        for one, other in ((inside, outside), (outside, inside)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _relay(self, one: socket.socket) -> None:
        other = self._peers.get(one)
        if other is None:
            return
        try:
            data = one.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            for each in (one, other):
                self._peers.pop(each, None)
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()
            return
        if self.fault is Kind.CUT:
            return
        if self.fault is Kind.GARBAGE:
            data = bytes(byte ^ 0x5A for byte in data)
        # It keeps the order, so that what was delayed goes first, also when the delay has ended.
        self._link.conditions = self._delayed if self.fault is Kind.DELAY else self._prompt
        self._link.put((other, data), len(data), time.monotonic())
