"""Mailbox: the server's ROUTER socket. It never decodes, never blocks, and what it keeps is bounded.

Bytes move between the socket and queues, one in and one out for every peer. What a queue does not take is dropped: its
peer alone loses, and the protocol repeats what was lost. The server's thread moves them whenever it reads the mailbox,
so that no message waits for another thread; a thread of the mailbox does while that one is busy. A lock keeps them
apart.

ZMTP heartbeats are off and the receiving pipe has no high-water mark, because libzmq 4.3.5 ends the process when a
full pipe meets a closed connection and a heartbeat (zeromq/libzmq issue 4364). What bounds memory in its place is the
count of bytes under way on each connection, see `cloud_verifier.connections`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import threading
import time
from collections import deque

import zmq
from zmq.utils.monitor import parse_monitor_message

from cloud_verifier.config import Link, StartError
from cloud_verifier.connections import SESSIONLESS_BYTES, Connections
from cloud_verifier.limits import Allowance, BoundedQueue
from cloud_verifier.security import CurveServer, check_bind
from speculation import wire
from speculation.connection import give_back_memory, hang_up

_log = logging.getLogger("cloud_verifier")

SEND_HIGH_WATER = 32
LARGEST_FRAME = wire.MAX_MESSAGE_BYTES * 5 // 4
"""Longer frames end their connection; up to here a message that is too large is answered with a fault."""
SESSION_BYTES = LARGEST_FRAME + (256 << 10)
SESSION_MESSAGES, SESSIONLESS_MESSAGES = 256, 32
RETRY_S = 0.005
"""How soon a full pipe is tried again."""
WATCH_S, WATCH_EACH_S = 0.025, 1e-4
"""How often the bytes under way are looked at while there are connections, and the share of each."""
LOST_BYTES = 32 << 20
"""So much that ZeroMQ never frees, and the socket is opened anew; robots take their sessions up again."""
REBIND_S = 5.0
IDLE_S = 0.04
"""When the server's thread has not read the mailbox for so long, the mailbox's own thread moves the bytes."""
TRIM_S = 0.5
"""When ZeroMQ has freed what a connection that was ended had under way."""
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
BURST = 256
"""Messages taken from the socket before those to be sent have their turn."""
FRAMES = 2
"""Frames kept of a message: enough to see that it has more than one."""


class Mailbox:
    """The verifier's socket. Peers are opaque names, see `Connections`."""

    def __init__(self, link: Link) -> None:
        """Raises StartError for an address that cannot be bound or keys that cannot be used."""
        check_bind(link.bind, link.keys is not None, link.allow_plain)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._curve: CurveServer | None = None
        self._socket: zmq.Socket[bytes] = None  # type: ignore[assignment]
        self._using = threading.RLock()
        """Held around every use of the socket and of what stands below."""
        self._stirred = threading.Event()
        self._connections = Connections(SESSION_BYTES)
        self._inboxes: dict[bytes, BoundedQueue] = {}
        self._outboxes: dict[bytes, BoundedQueue] = {}
        self._clients: dict[int, str] = {}
        """Keys by descriptor; each is entered with the first message of its connection."""
        self._turns: deque[bytes] = deque()
        self._watch_at, self._trim_at, self._moved_at = 0.0, math.inf, -math.inf
        self._closed: list[int] = []
        self._watched: list[zmq.Socket[bytes]] = []
        self._lines = Allowance(1.0, 10)
        self._failure: Exception | None = None
        self._closing = False
        self._notice_in, self._notice_out = socket.socketpair()
        self._notice_in.setblocking(False)
        self._notice_out.setblocking(False)
        try:
            if link.keys is not None:
                self._curve = CurveServer(self._context, link.keys)
            try:
                self._open(link.bind)
            except zmq.ZMQError as error:
                raise StartError(f"--bind {link.bind}: {error.strerror or error}") from None
        except StartError:
            self._free()
            raise
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        self.address = endpoint.rstrip(b"\0").decode() if isinstance(endpoint, bytes) else str(endpoint)
        port = self.address.rpartition(":")[2]
        self._port = int(port) if port.isdecimal() else None
        self.dropped = 0
        """Messages that found their peer's queue full."""
        self._thread = threading.Thread(target=self._run, name="mailbox", daemon=True)
        self._thread.start()

    # --- for the server's thread; `notify` for any

    def wait(self, seconds: float) -> None:
        """Return when there is mail, after `notify`, or after `seconds`. Raises RuntimeError if the socket failed."""
        with self._using:
            # What the mailbox's own thread did to the socket may have taken the descriptor's signal.
            nothing = not self._turns and not self._has_mail() and self._failure is None
        if nothing and seconds >= 0.001:
            self._poller.poll(int(seconds * 1000))
        elif nothing and seconds > 0.0:
            time.sleep(seconds)  # zmq counts in whole milliseconds
        with contextlib.suppress(BlockingIOError):
            while self._notice_out.recv(4096):
                pass
        if self._failure is not None:
            raise RuntimeError(f"the verifier's socket failed: {self._failure}") from self._failure

    def notify(self) -> None:
        """Make `wait` return."""
        with contextlib.suppress(OSError):  # a full pipe is notice enough; a closed one needs none
            self._notice_in.send(b"\0")

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Return a peer and the frames of its next message, peer after peer; None where there is none."""
        with self._using:
            if not self._turns:
                self._move()
            if not self._turns:
                return None
            peer = self._turns.popleft()
            inbox = self._inboxes[peer]
            frames = inbox.pop()
            if inbox.items:
                self._turns.append(peer)
            else:
                del self._inboxes[peer]
            return peer, frames

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool:
        """Send, soon. Returns False where the peer is gone, or reads nothing and its queue is full.

        A `droppable` message is dropped where the peer does not take what was sent before.
        """
        return self.send_payload(peer, wire.encode(message), droppable)

    def send_payload(self, peer: bytes, payload: bytes, droppable: bool = False) -> bool:
        """Send the bytes of a message, as `send` does."""
        with self._using:
            connection = self._connections.of_peer(peer)
            if connection is None or connection.routing_id is None:
                return False
            outbox = self._outboxes.setdefault(peer, BoundedQueue())
            if not outbox.items and (taken := self._push(connection.routing_id, payload)) is not None:
                return taken
            if droppable:
                return True
            self._stirred.set()
            most = SESSION_MESSAGES if connection.has_session else SESSIONLESS_MESSAGES
            return outbox.put([payload], most, SESSION_BYTES)

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """Let `wait` return when another socket of the server's thread has something, too."""
        with self._using:
            self._watched.append(socket)
            self._poller.register(socket, zmq.POLLIN)

    def unwatch(self, socket: zmq.Socket[bytes]) -> None:
        """Watch it no more."""
        with self._using:
            self._watched.remove(socket)
            self._poller.unregister(socket)

    def admit(self, peer: bytes, has_session: bool = True) -> None:
        """Note whether a peer has a session: only then may it send whole frames."""
        with self._using:
            self._connections.admit(peer, has_session)

    def waits(self, peer: bytes) -> bool:
        """Whether a peer has mail here that was not received yet."""
        with self._using:
            return peer in self._inboxes

    def client(self, peer: bytes) -> str:
        """Return the key (z85) that a peer came with; empty where there are no keys."""
        with self._using:
            connection = self._connections.of_peer(peer)
            return self._clients.get(connection.fd, "") if connection is not None else ""

    def forget(self, peer: bytes) -> None:
        """Drop what waits for a peer."""
        with self._using:
            self._outboxes.pop(peer, None)

    def close(self) -> None:
        """Send what can be sent within the linger time and free the address; safe to repeat."""
        if not self._closing:
            self._closing = True
            self._stirred.set()
            self._thread.join()
            self._free()
            self._notice_in.close()
            self._notice_out.close()

    # --- the socket, before and after its thread

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
        # A robot that vanished without closing its connection, which heartbeats would find, the kernel finds after
        # 16 s: by its own probes where nothing is under way to it, else by what is not acknowledged.
        router.tcp_maxrt = 16_000
        router.tcp_keepalive = 1
        router.tcp_keepalive_idle, router.tcp_keepalive_intvl, router.tcp_keepalive_cnt = 10, 2, 3
        router.bind(address)
        # The socket's descriptor in its place, because polling a socket uses it.
        self._poller = zmq.Poller()
        self._poller.register(router.fd, zmq.POLLIN)
        self._poller.register(self._notice_out, zmq.POLLIN)
        for watched in self._watched:
            self._poller.register(watched, zmq.POLLIN)

    def _close(self) -> None:
        if self._socket is not None and not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close()

    def _reopen(self) -> None:
        """Close the socket and open it at the same address. Raises ZMQError where that stays in use."""
        _log.warning("opening the socket anew: peers left %d bytes behind that are never freed", LOST_BYTES)
        self._connections.clear()
        self._closed = []
        self._drop_gone()
        until = time.monotonic() + REBIND_S
        while True:
            self._close()
            try:
                self._open(self.address)
            except zmq.ZMQError:
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)
            else:
                return self.notify()

    def _free(self) -> None:
        self._close()
        if self._curve is not None:
            self._curve.stop()
        self._context.term()

    # --- what both threads do

    def _run(self) -> None:
        """Move mail while the server's thread does not."""
        pause = 0.0
        try:
            while not self._closing:
                self._stirred.wait(pause)
                if pause == IDLE_S and time.monotonic() - self._moved_at < IDLE_S and not self._stirred.is_set():
                    continue
                self._stirred.clear()
                with self._using:
                    had_mail = bool(self._turns)
                    more, stuck = self._move()
                    if self._turns and not had_mail:
                        self.notify()
                pause = 0.0 if more else RETRY_S if stuck else IDLE_S
            with self._using:
                self._send_waiting()
        except Exception as error:
            self._failure = error
            self.notify()

    def _move(self) -> tuple[bool, bool]:
        """Move what came and what waits; return whether more may have come, and whether some peer takes nothing."""
        self._moved_at = time.monotonic()
        more = self._take_mail()
        stuck = self._send_waiting()
        if self._connections.lost_bytes > LOST_BYTES:
            self._reopen()
        return more, stuck

    def _take_mail(self) -> bool:
        """Move what came into the inboxes; return whether more may be there."""
        taken: list[tuple[bytes, int | None, list[bytes]]] = []
        due = time.monotonic() >= self._watch_at
        if not due and not self._has_mail():
            return False
        while len(taken) < BURST and (mail := self._receive()) is not None:
            taken.append(mail)
            self._cut_off()
        self._cut_off()
        # What was connected or closed before one of these messages was sent is known by now; see `_changes`.
        self._closed = self._changes(self._closed)
        drained = len(taken) < BURST
        if not taken and not self._closed:
            return False
        for routing_id, fd, frames in taken:
            if fd is None:
                self.dropped += 1
                continue
            connection = self._connections.deliver(fd, routing_id, sum(map(len, frames)))
            if connection is not None:
                self._put(connection.peer, connection.has_session, frames)
        if drained:
            self._connections.drained()
            for fd in self._closed:
                self._connections.close(fd)
            self._closed = []
        self._drop_gone()
        return not drained

    def _drop_gone(self) -> None:
        """Drop what is kept for and of peers that are gone: a Hello of a dead connection must not take a session."""
        for queues in (self._outboxes, self._inboxes):
            for peer in [peer for peer in queues if self._connections.of_peer(peer) is None]:
                del queues[peer]
        if len(self._turns) > len(self._inboxes):
            self._turns = deque(peer for peer in self._turns if peer in self._inboxes)

    def _put(self, peer: bytes, has_session: bool, frames: list[bytes]) -> None:
        limits = (SESSION_MESSAGES, SESSION_BYTES) if has_session else (SESSIONLESS_MESSAGES, SESSIONLESS_BYTES)
        inbox = self._inboxes.get(peer, BoundedQueue())
        if not inbox.put(frames, *limits):
            self.dropped += 1
        elif peer not in self._inboxes:
            self._inboxes[peer] = inbox
            self._turns.append(peer)

    def _receive(self) -> tuple[bytes, int | None, list[bytes]] | None:
        """Return routing id, descriptor and first frames of the next whole message, None where there is none.

        The descriptor is None where the message does not name its connection: a peer that greeted as ZMTP 1.0, which a
        garbled greeting is taken for.
        """
        try:
            head = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        frames: list[bytes] = []
        fd: int | None = None
        frame = head
        while frame.more:
            frame = self._socket.recv(copy=False)
            try:
                fd = int(frame.get(zmq.SRCFD))
            except zmq.ZMQError as error:
                if error.errno != errno.EINVAL:
                    raise
            if self._curve is not None and fd is not None:
                self._clients[fd] = str(frame.get("User-Id"))
            if len(frames) < FRAMES:
                frames.append(frame.bytes)
        return head.bytes, fd, frames

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
                self._connections.handshake_ended()
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

    def _has_mail(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

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
            hang_up(connection.fd, self._port)
            self._connections.close(connection.fd)
            self._trim_at = now + TRIM_S
            who = "a session" if connection.has_session else "a peer without session"
            if self._lines.take(None, now):
                _log.warning("ended the connection of %s: %s", who, why)
