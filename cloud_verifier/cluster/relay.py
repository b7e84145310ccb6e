"""Relay: for robots that reach the door's port alone. It passes frames on between a robot and its replica, unread.

Each robot has a connection of its own to its replica, with the door's key. All of it is done in one thread, which a
message of either side wakes; the robots' socket is in a process of its own (`cloud_verifier.door`), so a frame is
copied out of that socket, through the pair between the two processes, and into the socket to the replica.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zmq
import zmq.auth

from cloud_verifier.cluster.directory import Status
from cloud_verifier.cluster.tickets import DOOR
from cloud_verifier.config import StartError
from cloud_verifier.security import make_keys
from speculation import wire

MOST_ROBOTS = 1024
MOST_HOMES = 4096
"""Sessions whose replica is remembered."""
HIGH_WATER, SEND_HIGH_WATER = 256, 32
"""Messages from and to a replica that wait. Those to it may be frames of 4 MB, and a robot may send without end."""
SILENT_S = 10.0
"""A robot pings four times a second; after so long without a message its connection to the replica is closed."""
BURST = 64
"""Messages of one replica in a row."""


class Post(Protocol):
    """What is needed of the door's socket, see `cloud_verifier.door.supervisor.Door`."""

    def send_payload(self, peer: bytes, payload: bytes, droppable: bool = False) -> bool: ...

    def admit(self, peer: bytes, has_session: bool = True) -> None: ...

    def watch(self, descriptor: int, ready: Callable[[], bool]) -> None:
        """Let `wait` return when a descriptor can be read or, asked before, something is `ready` behind it."""

    def unwatch(self, descriptor: int) -> None: ...


@dataclass(eq=False)
class _Upstream:
    """A robot's connection to its replica."""

    replica: str
    socket: zmq.Socket[bytes]
    received_at: float
    """When the robot last sent something."""


class Relay:
    """Connections to replicas, by the robot's name in the mailbox. `clock` gives seconds."""

    def __init__(self, mailbox: Post, keys: Path | None, clock: Callable[[], float]) -> None:
        """Raises StartError for a key folder in which the door has no key and can make none."""
        self._mailbox, self._clock = mailbox, clock
        self._pair = _own_pair(keys) if keys is not None else None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * MOST_ROBOTS)
        self._upstreams: dict[bytes, _Upstream] = {}
        self._homes: OrderedDict[str, str] = OrderedDict()
        """Replicas by the sessions' resume tokens: what a robot without a ticket was served by."""
        self._looked_at = clock()

    @property
    def client(self) -> str:
        """The name of the key with which it comes to replicas; empty without keys."""
        return DOOR if self._pair is not None else ""

    @property
    def full(self) -> bool:
        """Whether there is no place for one robot more."""
        return len(self._upstreams) >= MOST_ROBOTS

    def home(self, resume: str) -> str:
        """Return the replica that a session was on; empty where that is not known."""
        return self._homes.get(resume, "")

    def open(self, peer: bytes, replica: Status, hello: wire.Hello) -> bool:
        """Connect a robot to a replica, in place of the one that it had, and greet that in its name.

        Returns False where no connection can be opened: for want of descriptors, or to what is no address.
        """
        self.close(peer)
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError:
            return False
        socket.linger = 0
        socket.rcvhwm, socket.sndhwm = HIGH_WATER, SEND_HIGH_WATER
        socket.maxmsgsize = wire.MAX_MESSAGE_BYTES
        try:
            if self._pair is not None:
                socket.curve_serverkey = replica.server_key.encode("ascii")
                socket.curve_publickey, socket.curve_secretkey = self._pair
            socket.connect(replica.address)
        except zmq.ZMQError:  # what a replica reports need be no address
            socket.close()
            return False
        self._upstreams[peer] = _Upstream(replica.name, socket, self._clock())
        # ZeroMQ's descriptor shows a change only once, so what it has is asked before every wait.
        self._mailbox.watch(socket.fileno(), lambda: bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN))
        self.forward(peer, wire.encode(hello))
        return True

    def forward(self, peer: bytes, payload: bytes) -> bool:
        """Pass a robot's message on; return whether the robot has a replica. A replica that takes nothing loses it."""
        upstream = self._upstreams.get(peer)
        if upstream is None:
            return False
        upstream.received_at = self._clock()
        with contextlib.suppress(zmq.Again):
            upstream.socket.send(payload, zmq.NOBLOCK)
        return True

    def turn(self, replicas: Collection[str]) -> None:
        """Pass on what replicas have sent. Robots whose replica is none of these any more are sent back to the door."""
        for peer, upstream in list(self._upstreams.items()):
            self._pass_down(peer, upstream)
        now = self._clock()
        if now - self._looked_at < 0.1:
            return
        self._looked_at = now
        for peer, upstream in list(self._upstreams.items()):
            if upstream.replica not in replicas:
                self._send_back(peer, f"replica {upstream.replica} is gone")
            elif now - upstream.received_at > SILENT_S:
                self.close(peer)

    def close(self, peer: bytes) -> None:
        """Close a robot's connection to its replica, if it has one."""
        upstream = self._upstreams.pop(peer, None)
        if upstream is not None:
            self._mailbox.unwatch(upstream.socket.fileno())
            upstream.socket.close()
            self._mailbox.admit(peer, False)

    def stop(self) -> None:
        """Close all connections; safe to repeat."""
        for peer in list(self._upstreams):
            self.close(peer)
        self._context.term()

    def _pass_down(self, peer: bytes, upstream: _Upstream) -> None:
        for _ in range(BURST):
            try:
                payload = upstream.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind = wire.kind_of(payload)
            if kind is wire.Redirect:
                self._send_back(peer, "its replica sends it elsewhere")
                return
            if kind is wire.Welcome:
                self._welcomed(peer, upstream, payload)
            if not self._mailbox.send_payload(peer, payload, droppable=kind is wire.EarlyTokens):
                self.close(peer)
                return

    def _welcomed(self, peer: bytes, upstream: _Upstream, payload: bytes) -> None:
        self._mailbox.admit(peer)
        with contextlib.suppress(wire.WireError):
            welcome = wire.decode(payload)
            if isinstance(welcome, wire.Welcome):
                self._homes[welcome.session] = upstream.replica
                self._homes.move_to_end(welcome.session)
                if len(self._homes) > MOST_HOMES:
                    self._homes.popitem(last=False)

    def _send_back(self, peer: bytes, why: str) -> None:
        self.close(peer)
        self._mailbox.send_payload(peer, wire.encode(wire.Redirect(reason=why)))


def _own_pair(keys: Path) -> tuple[bytes, bytes]:
    """Return the door's public and secret key, which are made where there are none. Raises StartError."""
    file = keys / f"{DOOR}.key_secret"
    if not file.exists():
        make_keys(keys, DOOR)
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        raise StartError(f"--keys {keys}: {error}; remove {file.name} and {DOOR}.key to have them made anew") from None
    if secret is None:
        raise StartError(f"--keys {keys}: {file.name} holds no secret key")
    return public, secret
