"""Connections: who is connected behind the ROUTER socket, and how much each has sent that is no whole message yet.

Knows no socket: the mailbox reports what it sees. A peer is named by a number of its connection, never by the routing
id that it may choose itself: whoever takes the id of a robot that is gone is another peer, without its session.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass, field

from speculation.connection import Undelivered

STRANGER_BYTES = 256 << 10
"""What a connection without a session may have under way: a Hello and what a robot sends before it knows better."""
GIVEN_ID = b"\0"
"""How routing ids begin that ZeroMQ gives; it gives none twice, but a peer may choose one that was used before."""
MOST_GONE = 4096
"""Routing ids of connections that are gone, whose messages may still come out of the socket."""


@dataclass(eq=False)
class Connection:
    """One accepted connection. `peer` names it; `routing_id` addresses it, once it has sent something."""

    peer: bytes
    undelivered: Undelivered
    routing_id: bytes | None = None
    has_session: bool = False
    alive: bool = True

    @property
    def fd(self) -> int:
        """The descriptor, which belongs to ZeroMQ."""
        return self.undelivered.fd


@dataclass
class Connections:
    """All that are alive. `session_bytes`: what a connection with a session may have under way: one whole message."""

    session_bytes: int
    _count: int = 0
    _of_fd: dict[int, Connection] = field(default_factory=dict)
    _of_peer: dict[bytes, Connection] = field(default_factory=dict)
    _of_id: dict[bytes, Connection] = field(default_factory=dict)
    _busy: set[int] = field(default_factory=set)
    _gone: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._of_fd)

    def accept(self, fd: int) -> Connection:
        """A connection was accepted; an earlier one with this descriptor is gone."""
        self.close(fd)
        self._count += 1
        connection = Connection(struct.pack(">Q", self._count), Undelivered(fd))
        self._of_fd[fd] = self._of_peer[connection.peer] = connection
        return connection

    def close(self, fd: int) -> None:
        """The connection with this descriptor is gone."""
        connection = self._of_fd.pop(fd, None)
        if connection is None:
            return
        connection.alive = False
        self._busy.discard(fd)
        self._of_peer.pop(connection.peer, None)
        if connection.routing_id is not None and self._of_id.get(connection.routing_id) is connection:
            del self._of_id[connection.routing_id]
            self._gone[connection.routing_id] = None
            if len(self._gone) > MOST_GONE:
                self._gone.popitem(last=False)

    def deliver(self, fd: int, routing_id: bytes, size: int) -> Connection | None:
        """A whole message of `size` bytes came; return whose it is, None where its sender is gone."""
        connection = self._of_fd.get(fd)
        if routing_id in self._gone and (routing_id[:1] == GIVEN_ID or connection is None or connection.routing_id):
            return None
        if connection is None or connection.routing_id not in (None, routing_id):
            connection = self.accept(fd)
        if connection.routing_id is None:
            before = self._of_id.get(routing_id)
            if before is not None:
                self.close(before.fd)
            connection.routing_id = routing_id
            self._gone.pop(routing_id, None)
            self._of_id[routing_id] = connection
        connection.undelivered.deliver(size)
        self._busy.add(fd)
        return connection

    def drained(self) -> None:
        """No whole message waits any more."""
        for fd in self._busy:
            self._of_fd[fd].undelivered.drained()
        self._busy.clear()

    def of_peer(self, peer: bytes) -> Connection | None:
        """Return the connection of a peer; None where it is gone."""
        return self._of_peer.get(peer)

    def over_limit(self) -> list[tuple[Connection, int]]:
        """Return the connections that have more under way than they may, and how many bytes."""
        sizes = [(connection, connection.undelivered.size()) for connection in self._of_fd.values()]
        return [(each, size) for each, size in sizes if size > self._limit(each)]

    def _limit(self, connection: Connection) -> int:
        return self.session_bytes if connection.has_session else STRANGER_BYTES
