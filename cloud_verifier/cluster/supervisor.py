"""Supervisor: starts replica processes on this machine, takes their reports, notices their end and ends them.

What it notices is put into a queue of events, so that whoever supervises needs no lock.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloud_verifier.cluster.channel import Channel, ChannelClosed, Charge, Drain, Join, Report, Shed
from cloud_verifier.cluster.directory import Status

_log = logging.getLogger("cloud_verifier")

JOIN_S = 600.0
"""How long a process may take until it has joined, imports included."""
LEFT_S = 5.0
"""How long a process may go on without its connection: it is of no use, and another one needs its place."""

LOOK_AGAIN_S = 1.0
"""After a connection could not be taken in."""


class Process(Protocol):
    """What is needed of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Spawn = Callable[[Sequence[str], Mapping[str, str]], Process]
"""Starts a command with an environment."""


@dataclass(frozen=True)
class Reported:
    """A replica reports."""

    status: Status


@dataclass(frozen=True)
class Ended:
    """The process of a replica has ended, or only its connection so far: then `code` is None."""

    name: str
    code: int | None


@dataclass
class _Replica:
    process: Process
    started: float
    channel: Channel[Join | Report] | None = None
    left_at: float = math.inf
    """When its connection ended."""


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> Process:
    """Start a process whose log is this one's."""
    return subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)


class Supervisor:
    """The replica processes of one machine, by name. Its methods are for one thread."""

    def __init__(self, secret: bytes, host: str, start: Spawn = spawn) -> None:
        """host: by which robots reach this machine. `start` starts a process."""
        self.events: queue.SimpleQueue[Reported | Ended] = queue.SimpleQueue()
        self._charge = Charge(secret, host)
        self._start = start
        self._replicas: dict[str, _Replica] = {}
        self._entering = threading.Lock()
        """Held until a process that was started is entered: it may join at once."""
        self._folder = Path(tempfile.mkdtemp(prefix="verifier-"))  # entered by its owner only
        self.path = self._folder / "supervisor"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._closing = False
        threading.Thread(target=self._accept, name="supervisor", daemon=True).start()

    @property
    def running(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: each.process.pid for name, each in self._replicas.items()}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
        """Start a replica by its command, to which its name and this supervisor are added."""
        words = [*command, "--name", name, "--supervisor", str(self.path)]
        with self._entering:
            replica = self._replicas[name] = _Replica(self._start(words, environment), time.monotonic())
        _log.info("replica %s starts as process %d", name, replica.process.pid)

    def drain(self, name: str) -> None:
        """Let a replica send its robots elsewhere and end; one that has not joined yet ends at once."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        try:
            if replica.channel is None:
                raise ChannelClosed("it has not joined")
            replica.channel.send(Drain())
        except ChannelClosed:
            replica.process.terminate()

    def shed(self, name: str, robots: int) -> None:
        """Let a replica send so many robots elsewhere."""
        replica = self._replicas.get(name)
        if replica is not None and replica.channel is not None:
            with contextlib.suppress(ChannelClosed):  # it has ended, which its thread notes
                replica.channel.send(Shed(robots))

    def kill(self, name: str) -> None:
        """End a replica that does not answer."""
        if name in self._replicas:
            self._replicas[name].process.kill()

    def reap(self) -> None:
        """Note processes that have ended as events, and end those that never join or do not end after leaving."""
        now = time.monotonic()
        for name, each in list(self._replicas.items()):
            code = each.process.poll()
            late = each.channel is None and now - each.started > JOIN_S
            if code is None and (late or now - each.left_at > LEFT_S):
                _log.warning("replica %s %s and is ended", name, "does not join" if late else "has left")
                each.process.kill()
            if code is not None:
                del self._replicas[name]
                if each.channel is not None:
                    each.channel.close()
                self.events.put(Ended(name, code))

    def close(self, wait_s: float = 10.0) -> None:
        """End all replicas, by force after `wait_s`; safe to repeat."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._replicas.values():
            each.process.terminate()
        until = time.monotonic() + wait_s
        for each in self._replicas.values():
            try:
                each.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
            if each.channel is not None:
                each.channel.close()
        self._replicas.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- threads

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closing:
                    return
                _log.warning("no replica can join for now: %s", error)  # out of descriptors, for a while perhaps
                time.sleep(LOOK_AGAIN_S)
                continue
            threading.Thread(target=self._take_in, args=(connection,), name="replica", daemon=True).start()

    def _take_in(self, connection: socket.socket) -> None:
        channel: Channel[Join | Report] = Channel(connection, Join | Report)
        name = ""
        replica: _Replica | None = None
        try:
            join = channel.receive()
            with self._entering:
                replica = self._replicas.get(join.name) if isinstance(join, Join) else None
            if not isinstance(join, Join) or replica is None or replica.channel is not None:
                raise ChannelClosed("no such replica was started here")
            name = join.name
            channel.send(self._charge)
            replica.channel = channel
            while True:
                message = channel.receive()
                if isinstance(message, Report) and message.status.name == name:
                    self.events.put(Reported(message.status))
        except ChannelClosed as error:
            channel.close()
            if replica is not None and name and not self._closing:
                replica.left_at = time.monotonic()
                _log.info("replica %s: %s", name, error)
                self.events.put(Ended(name, None))
