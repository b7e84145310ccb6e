"""Keeps the peers behind the ROUTER socket, and how much each has sent that is no whole message yet.

It uses no socket: `RouterSocket` reports every event. A peer is named by a number of its connection, never by the
routing id that it may choose itself: whoever takes the id of a robot that is gone is another peer, without its session.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from speculation.connection import Undelivered

SESSIONLESS_BYTES = 64 << 10
"""A connection without a session may have so much under way: a Hello is smaller by far."""
SESSIONLESS_S = 10.0
"""How long a connection may be without a session."""
MOST_SESSIONLESS = 128
"""So many connections may be without a session, where the process may have enough descriptors."""
MOST_ID_BYTES = 255
"""ZeroMQ lets a peer choose a routing id of so many; over the wire anything may come."""
GIVEN_ID = b"\0"
"""How routing ids begin that ZeroMQ gives; it gives none twice, but a peer may choose one that was used before."""
MOST_GONE = 4096
"""So many routing ids of connections that are gone are kept: their messages may still come out of the socket."""


@dataclass(eq=False)
class Connection:
    """A connection is an accepted one, with what is known of it; `peer` names it."""

    peer: bytes
    undelivered: Undelivered
    since: float
    """When it was accepted, or its session ended, seconds."""
    client: str = ""
    """Names its key; empty where there are no keys."""
    routing_id: bytes | None = None
    """Addresses it, once it has sent something."""
    has_session: bool = False

    @property
    def fd(self) -> int:
        """Return the descriptor, which belongs to ZeroMQ."""
        return self.undelivered.fd


@dataclass
class Connections:
    """These are all connections that are alive."""

    session_bytes: int
    """How much a connection with a session may have under way: one whole message."""
    clock: Callable[[], float] = time.monotonic
    number: int = 0
    """The number of the frontend that has them, so that peers of two frontends never have one name."""
    most_sessionless: int = MOST_SESSIONLESS
    """How many connections may be without a session; of more, the oldest are ended."""
    ended: list[bytes] = field(default_factory=list)
    """Peers that have sent something and are gone; whoever reads it empties it."""
    handshakes: int = 0
    """How many connections ended their handshakes; ZeroMQ does not name them."""
    _named: int = 0
    _count: int = 0
    _of_fd: dict[int, Connection] = field(default_factory=dict)
    _of_peer: dict[bytes, Connection] = field(default_factory=dict)
    _of_id: dict[bytes, Connection] = field(default_factory=dict)
    _busy: set[int] = field(default_factory=set)
    _gone: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._of_fd)

    def accept(self, fd: int) -> Connection:
        """Enter an accepted connection; an earlier one with this descriptor is gone."""
        self.close(fd)
        self._count += 1
        connection = Connection(struct.pack(">IQ", self.number, self._count), Undelivered(fd), self.clock())
        self._of_fd[fd] = self._of_peer[connection.peer] = connection
        return connection

    def close(self, fd: int) -> None:
        """Remove the connection with this descriptor."""
        connection = self._of_fd.pop(fd, None)
        if connection is None:
            return
        self._busy.discard(fd)
        self._of_peer.pop(connection.peer, None)
        if connection.routing_id is not None:
            self.ended.append(connection.peer)
        if connection.routing_id is not None and self._of_id.get(connection.routing_id) is connection:
            del self._of_id[connection.routing_id]
            self._gone[connection.routing_id] = None
            if len(self._gone) > MOST_GONE:
                self._gone.popitem(last=False)

    def clear(self) -> None:
        """Remove all connections: the socket was closed. Peers keep their numbers."""
        for fd in list(self._of_fd):
            self.close(fd)
        self.handshakes = self._named = 0

    @property
    def lost_bytes(self) -> int:
        """Return about what ZeroMQ keeps for ever of connections that are gone.

        It reads nothing of a connection that came with a routing id in use, and never frees what such a one sent.
        Here it counts as a handshake without a message.
        """
        unnamed = sum(connection.routing_id is None for connection in self._of_fd.values())
        return SESSIONLESS_BYTES * max(0, self.handshakes - self._named - unnamed)

    def deliver(self, fd: int, routing_id: bytes, size: int, client: str = "") -> Connection | None:
        """Count a whole message of `size` bytes, sent with the key of `client`.

        Returns its connection, None where its sender is gone.
        """
        connection = self._of_fd.get(fd)
        routing_id = routing_id[: MOST_ID_BYTES + 1]
        if routing_id in self._gone and (routing_id[:1] == GIVEN_ID or connection is None or connection.routing_id):
            return None
        if connection is None or connection.routing_id not in (None, routing_id):
            connection = self.accept(fd)
        if connection.routing_id is None:
            before = self._of_id.get(routing_id)
            if before is not None:
                self.close(before.fd)
            connection.routing_id, connection.client = routing_id, client
            self._named += 1
            self._gone.pop(routing_id, None)
            self._of_id[routing_id] = connection
        connection.undelivered.deliver(size)
        self._busy.add(fd)
        return connection

    def drained(self) -> None:
        """Note that no whole message waits any more."""
        for fd in self._busy:
            self._of_fd[fd].undelivered.drained()
        self._busy.clear()

    def of_peer(self, peer: bytes) -> Connection | None:
        """Return the connection of a peer; None where it is gone."""
        return self._of_peer.get(peer)

    def of_client(self, client: str) -> list[Connection]:
        """Return the connections with the key of a client, and those that have sent nothing: their key is not known."""
        return [each for each in self._of_fd.values() if each.client == client or each.routing_id is None]

    def admit(self, peer: bytes, has_session: bool) -> None:
        """Note whether a peer has a session."""
        connection = self._of_peer.get(peer)
        if connection is not None and connection.has_session != has_session:
            connection.has_session, connection.since = has_session, self.clock()

    def unwanted(self) -> list[tuple[Connection, str]]:
        """Return the connections to be ended, and why: too much under way, or too long or too many without session."""
        found = []
        sessionless = []
        too_old = self.clock() - SESSIONLESS_S
        for connection in self._of_fd.values():
            size = connection.undelivered.size()
            if size > (self.session_bytes if connection.has_session else SESSIONLESS_BYTES):
                found.append((connection, f"{size} bytes are no whole message or came too fast"))
            elif len(connection.routing_id or b"") > MOST_ID_BYTES:
                found.append((connection, f"its routing id has more than {MOST_ID_BYTES} bytes"))
            elif not connection.has_session and connection.since < too_old:
                found.append((connection, f"it had no session for {SESSIONLESS_S:g} s"))
            elif not connection.has_session:
                sessionless.append(connection)
        oldest = sessionless[: max(0, len(sessionless) - self.most_sessionless)]
        return [*found, *((each, f"{self.most_sessionless} others have no session either") for each in oldest)]
