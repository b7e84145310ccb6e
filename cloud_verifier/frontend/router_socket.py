"""Serves the ROUTER socket: never decodes, never blocks, and keeps what it holds within bounds.

Bytes move between the socket and queues, one in and one out for every peer. What a queue does not take is dropped: its
peer alone loses, and the protocol repeats what was lost. Mail is taken out by turns that are fair in bytes, first among
clients, then among a client's connections. One thread uses it, the frontend's (`cloud_verifier.frontend.__main__`).

ZMTP heartbeats are off and the receiving pipe has no high-water mark, because libzmq 4.3.5 ends the process when a
full pipe meets a closed connection and a heartbeat (zeromq/libzmq issue 4364). What bounds memory in its place is the
count of bytes under way on each connection, see `cloud_verifier.frontend.connections`.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from cloud_verifier.frontend.connections import MOST_SESSIONLESS, SESSIONLESS_BYTES, Connection, Connections
from cloud_verifier.frontend.curve import CurveServer
from cloud_verifier.frontend.fair_queue import BoundedQueue, Inboxes
from cloud_verifier.limits import Rate
from cloud_verifier.start_error import StartError
from speculation import wire
from speculation.connection import give_back_memory, hang_up

_log = logging.getLogger("cloud_verifier")

SEND_HIGH_WATER = 32
LARGEST_FRAME = wire.MAX_MESSAGE_BYTES * 5 // 4
"""Longer frames end their connection; up to here a message that is too large is answered with a fault."""
SESSION_BYTES = LARGEST_FRAME + (256 << 10)
SESSION_MESSAGES, SESSIONLESS_MESSAGES = 256, 32
TURN_BYTES = 16 << 10
"""So much of a client's mail is received before the next one has its turn."""
OVER, BURST_S = 4.0, 4.0
"""A client that sends so many times what its quota of bytes allows, for so many seconds, is hung up on."""
RETRY_S = 0.005
"""How soon a full pipe is tried again."""
WATCH_S, WATCH_EACH_S = 0.025, 1e-4
"""How often the bytes under way are looked at while there are connections, and the share of each."""
LOST_BYTES = 32 << 20
"""When ZeroMQ keeps so much for ever the socket is opened anew; robots take their sessions up again."""
REBIND_S = 5.0
HANDSHAKE_S = 5.0
"""How long a connection may take to shake hands."""
TRIM_S = 0.5
"""ZeroMQ has freed what a connection had under way so long after it was ended."""
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
BURST = 256
"""So many messages are taken from the socket before those to be sent have their turn."""
FRAMES = 2
"""So many frames of a message are kept: enough to see that it has more than one."""


class _Mail(NamedTuple):
    """A message as it came out of the socket."""

    routing_id: bytes
    fd: int | None
    """The descriptor of its connection. None where the message does not name it: its peer greeted as ZMTP 1.0, which a
    garbled greeting is taken for."""
    frames: list[bytes]
    """The first FRAMES of it."""
    size: int
    client: str
    """Names the key that it was sent with; empty where there are no keys."""


class RouterSocket:
    """Sends and receives for the verifier. Peers are opaque names, see `Connections`."""

    def __init__(
        self,
        address: str,
        keys: Path | None = None,
        listener: int | None = None,
        number: int = 0,
        bytes_per_s: float = 0.0,
        most_sessionless: int = MOST_SESSIONLESS,
    ) -> None:
        """Open the socket: at `address`, or where the descriptor `listener` listens already.

        `number`, `most_sessionless`: see `Connections`. Raises StartError for an address that cannot be bound or keys
        that cannot be used.
        """
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listener = listener
        self._curve: CurveServer | None = None
        self._socket: zmq.Socket[bytes] = None  # type: ignore[assignment]
        self._connections = Connections(SESSION_BYTES, time.monotonic, number, most_sessionless)
        self._inboxes = Inboxes(TURN_BYTES)
        self._outboxes: dict[bytes, BoundedQueue] = {}
        self._rate = Rate(OVER * bytes_per_s, BURST_S) if bytes_per_s else None
        self._watch_at, self._trim_at = 0.0, math.inf
        self._closed: list[int] = []
        self._stuck = False
        self._lines = Rate.counted(1.0, 10)
        try:
            if keys is not None:
                self._curve = CurveServer(self._context, keys)
            try:
                self._open(address)
            except zmq.ZMQError as error:
                raise StartError(f"--bind {address}: {error.strerror or error}") from None
        except StartError:
            self._free()
            raise
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        self.address = endpoint.rstrip(b"\0").decode() if isinstance(endpoint, bytes) else str(endpoint)
        port = self.address.rpartition(":")[2]
        self._port = int(port) if port.isdecimal() else None
        self.dropped = 0
        """How many messages found their peer's queue full; whoever reports it sets it back."""

    def wait(self, seconds: float, reading: int | None = None, writing: int | None = None) -> None:
        """Return when mail came, another descriptor can be read or written, something is due, or after `seconds`."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        if self._curve is not None:
            poller.register(self._curve.zap_socket, zmq.POLLIN)
        for descriptor, event in ((reading, zmq.POLLIN), (writing, zmq.POLLOUT)):
            if descriptor is not None:
                poller.register(descriptor, event)
        poller.poll(math.ceil(1000 * min(seconds, RETRY_S if self._stuck else WATCH_S)))

    def move(self) -> None:
        """Move what came and what waits, and look after keys and connections."""
        if self._curve is not None:
            self._curve.answer()
        self._take_mail()
        self._stuck = self._send_waiting()
        if self._connections.lost_bytes > LOST_BYTES:
            _log.warning("opening the socket anew: peers left %d bytes behind that are never freed", LOST_BYTES)
            self._reopen()

    def check_keys(self) -> list[str]:
        """Take up keys that were changed on disk; return the clients whose keys were taken back.

        Their connections are ended. A new key of the server opens the socket anew.
        """
        if self._curve is None:
            return []
        revoked = self._curve.refresh()
        for client in revoked:
            for connection in self._connections.of_client(client):
                self._end(connection, f"the key of {client} was taken back")
        if self._curve.renewed():
            _log.info("the server's key has changed; robots connect again with the new one")
            self._reopen()
        self._drop_gone()
        return revoked

    @property
    def clients(self) -> list[str]:
        """Return the names of those that may connect; none where there are no keys."""
        return self._curve.keys.names if self._curve is not None else []

    @property
    def has_mail(self) -> bool:
        """Whether mail waits to be received."""
        return bool(self._inboxes)

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Return a peer and the frames of its next message, in fair turns; None where there is none."""
        if not self._inboxes:
            self.move()
        return self._inboxes.pop()

    def client(self, peer: bytes) -> str:
        """Return the name of a peer's key; empty where there are no keys, or the peer is gone."""
        connection = self._connections.of_peer(peer)
        return connection.client if connection is not None else ""

    def ended(self) -> list[bytes]:
        """Return the peers that have sent something and are gone since the last call."""
        ended, self._connections.ended = self._connections.ended, []
        return ended

    def send(self, peer: bytes, payload: bytes, droppable: bool = False) -> bool:
        """Send, soon. Returns False where the peer is gone, or reads nothing and its queue is full.

        A `droppable` message is dropped where the peer does not take what was sent before.
        """
        connection = self._connections.of_peer(peer)
        if connection is None or connection.routing_id is None:
            return False
        outbox = self._outboxes.setdefault(peer, BoundedQueue())
        if not outbox.items and (taken := self._push(connection.routing_id, payload)) is not None:
            return taken
        if droppable:
            return True
        self._stuck = True
        most = SESSION_MESSAGES if connection.has_session else SESSIONLESS_MESSAGES
        return outbox.put([payload], most, SESSION_BYTES)

    def admit(self, peer: bytes, has_session: bool = True) -> None:
        """Note whether a peer has a session: only then may it send whole frames."""
        self._connections.admit(peer, has_session)

    def forget(self, peer: bytes) -> None:
        """Drop what waits for a peer."""
        self._outboxes.pop(peer, None)

    def close(self) -> None:
        """Send what can be sent within the linger time and free the address; safe to repeat."""
        if not self._socket.closed:
            self._send_waiting()
            self._free()

    # --- the socket

    def _open(self, address: str) -> None:
        """Open the socket. Raises ZMQError for an address that cannot be bound."""
        router = self._socket = self._context.socket(zmq.ROUTER)
        self._monitor = router.get_monitor_socket(EVENTS)
        if self._curve is not None:
            self._curve.protect(router)
        router.router_mandatory = True
        router.sndhwm, router.rcvhwm = SEND_HIGH_WATER, 0
        router.linger = 200
        router.maxmsgsize = LARGEST_FRAME
        router.handshake_ivl = int(1000 * HANDSHAKE_S)
        # A robot that vanished without closing its connection, which heartbeats would find, the kernel finds after
        # 16 s: by its own probes where nothing is under way to it, else by what is not acknowledged.
        router.tcp_maxrt = 16_000
        router.tcp_keepalive = 1
        router.tcp_keepalive_idle, router.tcp_keepalive_intvl, router.tcp_keepalive_cnt = 10, 2, 3
        if self._listener is not None:
            router.setsockopt(zmq.USE_FD, os.dup(self._listener))
        router.ipv6 = "[" in address
        router.bind(address)

    def _close(self) -> None:
        if self._socket is not None and not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close()

    def _reopen(self) -> None:
        """Close the socket and open it at the same address. Raises ZMQError where that stays in use."""
        self._connections.clear()
        self._closed = []
        self._drop_gone()
        until = time.monotonic() + REBIND_S
        while True:
            self._close()
            try:
                return self._open(self.address)
            except zmq.ZMQError:
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)

    def _free(self) -> None:
        self._close()
        if self._curve is not None:
            self._curve.stop()
        self._context.term()

    def _take_mail(self) -> None:
        """Move what came into the inboxes."""
        has_mail = int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        if not has_mail and time.monotonic() < self._watch_at:
            return
        taken: list[_Mail] = []
        while len(taken) < BURST and (mail := self._receive()) is not None:
            taken.append(mail)
            self._cut_off()
        self._cut_off()
        # What was connected or closed before one of these messages was sent is known by now; see `_changes`.
        self._closed = self._changes(self._closed)
        drained = len(taken) < BURST
        if not taken and not self._closed:
            return
        for mail in taken:
            if mail.fd is None:
                self.dropped += 1
                continue
            connection = self._connections.deliver(mail.fd, mail.routing_id, mail.size, mail.client)
            if connection is not None:
                self._put(connection, mail.frames, mail.size)
        if drained:
            self._connections.drained()
            for fd in self._closed:
                self._connections.close(fd)
            self._closed = []
        self._drop_gone()

    def _drop_gone(self) -> None:
        """Drop what is kept for and of peers that are gone: a Hello of a dead connection must not take a session."""
        for peer in [peer for peer in self._outboxes if self._connections.of_peer(peer) is None]:
            del self._outboxes[peer]
        for peer in self._inboxes:
            if self._connections.of_peer(peer) is None:
                self._inboxes.drop(peer)

    def _put(self, connection: Connection, frames: list[bytes], size: int) -> None:
        sharer = connection.client or connection.peer
        if self._curve is not None and connection.client not in self._curve.keys:
            return self._end(connection, f"the key of {connection.client} was taken back")
        if self._rate is not None and self._rate.use(sharer, size, time.monotonic()) > 0.0:
            return self._end(connection, f"it sends more than {OVER:g} times what --bytes-per-s allows")
        most, most_bytes = SESSIONLESS_MESSAGES, SESSIONLESS_BYTES
        if connection.has_session:
            most, most_bytes = SESSION_MESSAGES, SESSION_BYTES
        self.dropped += not self._inboxes.put(connection.peer, sharer, frames, most, most_bytes)

    def _receive(self) -> _Mail | None:
        """Return the next whole message, None where there is none."""
        try:
            head = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        frames: list[bytes] = []
        size = 0
        fd: int | None = None
        client = ""
        frame = head
        while frame.more:
            frame = self._socket.recv(copy=False)
            try:
                client = str(frame.get("User-Id")) if self._curve is not None else ""
                fd = int(frame.get(zmq.SRCFD))
            except zmq.ZMQError as error:
                if error.errno != errno.EINVAL:
                    raise
            size += len(frame)
            if len(frames) < FRAMES:
                frames.append(frame.bytes)
        return _Mail(head.bytes, fd, frames, size, client)

    def _changes(self, closed: list[int]) -> list[int]:
        """Enter accepted connections and return those that were closed, with the ones known before.

        ZeroMQ's thread reports both before it hands over what a later connection sends. So a descriptor that is
        accepted again belongs to the new connection at once; one that is only closed may have mail left in this turn.
        """
        while True:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return closed
            fd = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._connections.accept(fd)
                closed = [each for each in closed if each != fd]
            elif event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connections.handshakes += 1
            elif event["event"] == zmq.EVENT_ACCEPT_FAILED:
                if self._lines.take("accept", time.monotonic()):
                    _log.warning("a connection cannot be taken: %s; if that goes on, raise ulimit -n", os.strerror(fd))
            else:
                closed.append(fd)

    def _send_waiting(self) -> bool:
        """Send what waits, as far as the peers take it; return whether some peer does not."""
        stuck = False
        for peer, outbox in self._outboxes.items():
            connection = self._connections.of_peer(peer)
            routing_id = connection.routing_id if connection is not None else None
            while outbox.items:
                if routing_id is not None and self._push(routing_id, outbox.items[0][0]) is None:
                    stuck = True
                    break
                outbox.pop()
        return stuck

    def _push(self, routing_id: bytes, payload: bytes) -> bool | None:
        """Return True where the message is on its way, None where the pipe is full, False where the peer is gone."""
        try:
            self._socket.send_multipart([routing_id, payload], zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _cut_off(self) -> None:
        """End connections that have more under way than they may, at most every WATCH_S."""
        now = time.monotonic()
        if now < self._watch_at:
            return
        if now >= self._trim_at:
            self._trim_at = math.inf
            give_back_memory()
        self._watch_at = now + max(WATCH_S, WATCH_EACH_S * len(self._connections))
        for connection, why in self._connections.unwanted():
            self._end(connection, why)

    def _end(self, connection: Connection, why: str) -> None:
        """Hang up on a connection."""
        hang_up(connection.fd, self._port)
        self._connections.close(connection.fd)
        now = time.monotonic()
        self._trim_at = now + TRIM_S
        who = "a session" if connection.has_session else "a peer without session"
        if self._lines.take(None, now):
            _log.warning(
                "ended the connection of %s: %s", who + (f" of {connection.client}" if connection.client else ""), why
            )
