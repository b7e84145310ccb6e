"""The robot's real link (`edge_drafter.link.ZmqLink`) on virtual time: its thread a task, its socket a `Wire`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from greenlet import getcurrent

from edge_drafter import link as link_module
from edge_drafter.link import LinkConfig, ZmqLink
from vlm_nav_evaluation.virtual_time.timeline import Inbox, Timeline


class _Condition:
    """A `threading.Condition` whose waiting is virtual: all runs in one thread, so it needs no lock."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._waiting: dict[Any, None] = {}

    def __enter__(self) -> _Condition:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait(self, timeout: float) -> None:
        me = getcurrent()
        self._waiting[me] = None
        try:
            self._timeline.wait(timeout)
        finally:
            del self._waiting[me]

    def notify_all(self) -> None:
        for each in self._waiting:
            self._timeline.wake(each)


class _Thread:
    """A `threading.Thread` that is a task on virtual time."""

    def __init__(self, timeline: Timeline, target: Callable[[], None]) -> None:
        self._timeline, self._target = timeline, target

    def start(self) -> None:
        self.task = self._timeline.start(self._target)

    def join(self) -> None:
        for _ in range(10_000):
            if self.task.dead:
                return
            self._timeline.sleep(0.01)
        raise AssertionError("the link's thread does not end")


class Wire:
    """Stands for `LinkSocket`. What the robot sends goes to `takes`; what comes is put into `inbox`."""

    def __init__(self, timeline: Timeline, takes: Callable[[bytes], None]) -> None:
        self._takes = takes
        self.inbox: Inbox[bytes] = Inbox(timeline)
        self.opened = 0
        """Connections that the link has made."""
        self.addresses: set[str] = set()
        """Where to."""
        self.lost = self.is_new = False
        """What a socket notes for its link: the other end has ended the connection; there is another one since."""
        self.refusal = self.absence = ""
        self.unresolved = False
        """And why a handshake failed; none does here."""

    def put(self, payload: bytes, now: float) -> None:
        self._takes(payload)

    def leave(self, payload: bytes) -> None:
        self._takes(payload)

    def turn(self, now: float) -> Iterator[bytes]:
        while (payload := self.inbox.take()) is not None:
            yield payload

    def wait(self, until: float, wake: socket.socket, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            if wake.recv(4096):
                return
        self.inbox.wait(until - now)

    def open(self, address: str) -> None:
        """Be a new connection to an address."""
        self.inbox.clear()
        self.opened += 1
        self.addresses.add(address)

    def reopen(self, address: str = "", *_: object) -> None:
        self.open(address or max(self.addresses))

    def close(self) -> None:
        self.inbox.clear()


class VirtualLink(ZmqLink):
    """A link that wakes its thread on virtual time, too, and whose connections are all made to one wire."""

    def __init__(self, wire: Wire, config: LinkConfig, clock: Callable[[], float]) -> None:
        self.wire = wire
        super().__init__(config, clock=clock)
        _wires[self.task] = wire

    def _wake(self) -> None:
        super()._wake()
        self.wire.inbox.notify()

    @property
    def task(self) -> Any:
        """The link's thread."""
        return self._thread.task  # type: ignore[attr-defined]


_wires: WeakKeyDictionary[Any, Wire] = WeakKeyDictionary()
"""The wire of each link, by the task that is its thread."""


@contextlib.contextmanager
def virtual_links(timeline: Timeline) -> Iterator[None]:
    """Let every link that is made meanwhile run on virtual time."""

    def socket_to(context: object, address: str, *_: object) -> Wire:
        wire = _wires[getcurrent()]
        wire.open(address)
        return wire

    threading = mock.Mock(
        Condition=lambda: _Condition(timeline), Thread=lambda target, name, daemon: _Thread(timeline, target)
    )
    with mock.patch.multiple(link_module, threading=threading, LinkSocket=socket_to):
        yield
