"""The robot's real link (`edge_drafter.link.ZmqLink`) on virtual time: its thread a task, its socket a `Wire`."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from edge_drafter import link as link_module
from edge_drafter.link import LinkConfig, ZmqLink
from vlm_nav_evaluation.virtual_time.timeline import Timeline


class Killed(BaseException):
    """A process was killed: nothing in it may catch this."""


class Processes:
    """Which tasks were killed. They learn of it when they next wait, and what they left planned is cancelled."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._killed: set[Any] = set()
        self._waiting: dict[Any, int] = {}

    def sleep(self, seconds: float) -> None:
        """Let time pass for the task that calls. Raises Killed."""
        if seconds > 0.0:
            self.wait(seconds)
        self.check()

    def wait(self, seconds: float) -> None:
        """Wait until `wake` or so many seconds have passed. Raises Killed."""
        me, timeline = getcurrent(), self.timeline
        self.check()
        self._waiting[me] = timeline.at(timeline.now + max(0.0, seconds), me)
        timeline.pass_on(me)
        self._waiting.pop(me, None)
        self.check()

    def wake(self, task: Any) -> None:
        """Let a task that waits go on now."""
        alarm = self._waiting.pop(task, None)
        if alarm is not None:
            self.timeline.cancel(alarm)
            self.timeline.at(self.timeline.now, task)

    def kill(self, task: Any) -> None:
        """Let a task end where it stands."""
        self._killed.add(task)
        self.wake(task)

    def check(self) -> None:
        """Raise Killed where the task that calls was."""
        if getcurrent() in self._killed:
            self._killed.discard(getcurrent())
            raise Killed


class _Condition:
    """A `threading.Condition` whose waiting is virtual: all runs in one thread, so it needs no lock."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._waiting: set[Any] = set()

    def __enter__(self) -> _Condition:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait(self, timeout: float) -> None:
        me = getcurrent()
        self._waiting.add(me)
        try:
            self._processes.wait(timeout)
        finally:
            self._waiting.discard(me)

    def notify_all(self) -> None:
        for each in sorted(self._waiting, key=id):
            self._processes.wake(each)


class _Thread:
    """A `threading.Thread` on virtual time."""

    def __init__(self, processes: Processes, target: Callable[[], None]) -> None:
        self._processes = processes

        def run() -> None:
            with contextlib.suppress(Killed):
                target()

        self.task = greenlet(run, getcurrent().parent)

    def start(self) -> None:
        timeline = self._processes.timeline
        timeline.at(timeline.now, self.task)

    def join(self) -> None:
        for _ in range(10_000):
            if self.task.dead:
                return
            self._processes.sleep(0.01)
        raise AssertionError("the link's thread does not end")


class Wire:
    """Stands for `LinkSocket`. What the robot sends goes to `takes`, what is delivered arrives when its link looks."""

    def __init__(self, processes: Processes, takes: Callable[[bytes], None]) -> None:
        self._takes = takes
        self._arrived: deque[bytes] = deque()
        self._changed = _Condition(processes)
        self.opened = 0
        """Connections that the link has made."""
        self.addresses: set[str] = set()
        """Where to."""
        self.lost = self.is_new = False
        """What a socket notes for its link: the other end has ended the connection; there is another one since."""
        self.refusal = self.absence = ""
        self.unresolved = False
        """And why a handshake failed; none does here."""

    def deliver(self, payload: bytes) -> None:
        """Bring a message to the robot."""
        self._arrived.append(payload)
        self._changed.notify_all()

    def wake(self) -> None:
        """Make `wait` return."""
        self._changed.notify_all()

    def put(self, payload: bytes, now: float) -> None:
        self._takes(payload)

    def turn(self, now: float) -> Iterator[bytes]:
        while self._arrived:
            yield self._arrived.popleft()

    def wait(self, until: float, wake: socket.socket, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            if wake.recv(4096):
                return
        if not self._arrived:
            self._changed.wait(until - now)

    def open(self, address: str) -> None:
        """Be a new connection to an address."""
        self._arrived.clear()
        self.opened += 1
        self.addresses.add(address)

    def reopen(self, address: str = "", *_: object) -> None:
        self.open(address or max(self.addresses))

    def close(self) -> None:
        self._arrived.clear()


class VirtualLink(ZmqLink):
    """A link that wakes its thread on virtual time, too, and whose connections are all made to one wire."""

    def __init__(self, wire: Wire, config: LinkConfig, clock: Callable[[], float]) -> None:
        self.wire = wire
        super().__init__(config, clock=clock)
        _wires[self.task] = wire

    def _wake(self) -> None:
        super()._wake()
        self.wire.wake()

    @property
    def task(self) -> Any:
        """The link's thread."""
        return self._thread.task  # type: ignore[attr-defined]


_wires: WeakKeyDictionary[Any, Wire] = WeakKeyDictionary()
"""Of the threads of links."""


@contextlib.contextmanager
def virtual_links(processes: Processes) -> Iterator[None]:
    """Let every link that is made meanwhile run on virtual time."""
    tasks: list[_Thread] = []

    def thread(target: Callable[[], None], name: str, daemon: bool) -> _Thread:
        tasks.append(_Thread(processes, target))
        return tasks[-1]

    def socket_to(context: object, address: str, *_: object) -> Wire:
        wire = _wires[getcurrent()]
        wire.open(address)
        return wire

    threading = mock.Mock(Condition=lambda: _Condition(processes), Thread=thread)
    try:
        with mock.patch.multiple(link_module, threading=threading, LinkSocket=socket_to):
            yield
    finally:
        for each in tasks:
            if not each.task.dead:
                each.task.throw()
