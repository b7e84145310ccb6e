"""The link's DEALER socket. It never decodes, and what it keeps is bounded.

What a verifier sends faster than it is taken, or never completes, costs that verifier its messages or its connection,
never this robot's memory: see `cloud_verifier.frontend.router_socket`, the other end, for the reasons.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from speculation.address import host_of, resolve
from speculation.connection import Undelivered, give_back_memory, hang_up
from speculation.links import LinkConditions
from speculation.wire import MAX_MESSAGE_BYTES

_log = logging.getLogger(__name__)

SEND_HIGH_WATER = 32
BURST = 256
"""Messages taken from the socket before those to be sent have their turn."""
UNDER_WAY_BYTES = 2 * MAX_MESSAGE_BYTES
WATCH_S, WATCH_CLOSELY_S = 0.02, 0.005
"""How often the bytes under way are looked at, and how often while they are more than a message of a usual size."""
USUAL_BYTES = 64 << 10
EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
FAREWELL_MS = 200
"""Milliseconds for which closing a connection waits for its last message to leave."""
NEXT_KEY_S = 0.2
"""How soon after a handshake that failed the next server key is tried."""
TRIM_S = 0.5
"""When ZeroMQ has freed what a connection that was ended had under way."""
MOST_WAITING, MOST_WAITING_BYTES = 1024, 2 * MAX_MESSAGE_BYTES
"""Received messages that may wait for their time of arrival; what comes beyond them is dropped."""


class LinkSocket:
    """One connection; used by the link's thread alone.

    `curve`: the public keys that the server may have, own public and own secret key.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        curve: tuple[tuple[bytes, ...], bytes, bytes] | None,
    ) -> None:
        self._context, self._address, self._curve = context, address, curve
        self._key, self._next_key_at = 0, math.inf
        self.refusal = ""
        """Why the last handshake failed, with what to do about it; empty where it did not, or none was begun."""
        self.absence = ""
        """Why there is nobody to shake hands with, as far as is known; empty where there is, or may be."""
        self.unresolved = False
        """Whether that is because the verifier's name has no address."""
        self.is_new = False
        """Whether a connection was made since whoever reads this has cleared it; the verifier knows none by itself."""
        self._open()

    def _open(self) -> None:
        self._ended = self._accepted = self.unresolved = False
        self.absence = ""
        dealer = self._context.socket(zmq.DEALER)
        self._monitor = dealer.get_monitor_socket(EVENTS)
        dealer.linger = 0
        dealer.immediate = True
        dealer.sndhwm, dealer.rcvhwm = SEND_HIGH_WATER, 0
        dealer.maxmsgsize = MAX_MESSAGE_BYTES
        dealer.connect_timeout = 3000
        dealer.reconnect_ivl_max = 1000
        try:
            if self._curve is not None:
                servers, dealer.curve_publickey, dealer.curve_secretkey = self._curve
                dealer.curve_serverkey = servers[self._key % len(servers)]
            place = self._resolved()
            dealer.ipv6 = "[" in place
            dealer.connect(place)
        except ValueError as error:
            self.absence, self.unresolved, self._ended = f"verifier {self._address}: {error}", True, True
        except zmq.ZMQError as error:  # a verifier may send the robot to what is no address
            _log.warning("cannot connect to %s: %s", self._address, error)
            self._ended = True
        self._socket = dealer
        self._unsent: deque[bytes] = deque(maxlen=SEND_HIGH_WATER)
        self._undelivered: Undelivered | None = None
        self._watch_at, self._trim_at = -math.inf, math.inf
        self._more = False

    def _resolved(self) -> str:
        """Return the address with the number that its name has; ZeroMQ would look it up without a word.

        Raises ValueError where it has none.
        """
        host = host_of(self._address)
        if not host:
            return self._address
        return f"tcp://{resolve(host)[0]}:{self._address.rpartition(':')[2]}"

    @property
    def lost(self) -> bool:
        """Whether the connection has ended, or nobody accepts one, and no other key is to be tried; ZeroMQ goes on."""
        return self._ended and self._next_key_at == math.inf

    def put(self, payload: bytes, now: float) -> None:
        """Queue a payload, which the next turn sends."""
        self._unsent.append(payload)

    def turn(self, now: float) -> Iterator[bytes]:
        """Send what is queued, and yield the payloads that arrived."""
        with contextlib.suppress(zmq.Again):
            while self._unsent:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()
        yield from self._receive()
        if now >= self._watch_at:
            closely = self._watch() > USUAL_BYTES
            self._watch_at = now + (WATCH_CLOSELY_S if closely else WATCH_S)
            if now >= self._trim_at:
                self._trim_at = math.inf
                give_back_memory()

    def wait(self, until: float, wake: socket.socket, now: float) -> None:
        """Return when something has arrived, at the latest at `until`."""
        seconds = min(until, now if self._more else max(now, self._watch_at)) - now
        if 0.0 < seconds < 0.001:
            time.sleep(seconds)  # zmq counts in whole milliseconds
            return
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._unsent else 0))
        poller.register(wake, zmq.POLLIN)
        poller.poll(max(0, int(seconds * 1000)))
        with contextlib.suppress(BlockingIOError):
            while wake.recv(4096):
                pass

    def leave(self, payload: bytes) -> None:
        """Send a last payload at once, where a verifier is connected; declared conditions do not delay it.

        Closing the socket waits for it, `FAREWELL_MS` at most.
        """
        self._socket.linger = FAREWELL_MS
        with contextlib.suppress(zmq.Again):
            self._socket.send(payload, zmq.NOBLOCK)

    def reopen(self, address: str, curve: tuple[tuple[bytes, ...], bytes, bytes] | None) -> None:
        """Begin a new connection, to any address; what is not sent, or not there yet, is dropped."""
        self.close()
        if curve is None or self._curve is None or curve[0] != self._curve[0]:
            self._key = 0
        self.refusal, self._next_key_at = "", math.inf
        self._address, self._curve = address, curve
        self._open()

    def close(self) -> None:
        """Close the connection and drop what is under way; safe to repeat."""
        self._close()

    def _close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()

    def _take_next_key(self) -> None:
        """Connect with the next key that the server may have; what is to be sent stays."""
        self._key += 1
        unsent = self._unsent
        self._close()
        self._open()
        self._unsent = unsent

    def _note_connection(self, event: int) -> None:
        """Note whether anybody accepts connections."""
        self._accepted = self._accepted or event == zmq.EVENT_CONNECTED
        nobody = "nobody accepts connections there; is it running, and is the port right?"
        self.absence = "" if self._accepted else f"no verifier answers at {self._address}: {nobody}"

    def _note_handshake(self, event: int) -> None:
        """Note how a handshake ended; a verifier with another key never learns whose robot this is."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.refusal, self.is_new = "", True
            self._next_key_at = math.inf
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refusal = (
                f"the verifier at {self._address} does not accept this robot's key; put the robot's public key into "
                "its authorized folder, as keygen --client does there"
            )
        else:
            self.refusal = f"the handshake with {self._address} failed: " + (
                "what answers there does not have the server key that this robot holds; copy server.key of the "
                "verifier's key folder to the robot's"
                if self._curve is not None
                else "if the verifier has keys, this robot needs some too (keys)"
            )
            if self._curve is not None and len(self._curve[0]) > 1 and self._next_key_at == math.inf:
                self._next_key_at = time.monotonic() + NEXT_KEY_S

    def _receive(self) -> Iterator[bytes]:
        self._more = False
        for _ in range(BURST):
            payload = self._receive_one()
            if payload is None:
                return
            if self._undelivered is not None:
                self._undelivered.deliver(len(payload))
            yield payload
        self._more = True

    def _receive_one(self) -> bytes | None:
        """Return the first frame of the next message; a message of several frames is malformed and reads as empty."""
        try:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        whole = not frame.more
        payload = frame.bytes if whole else b""
        while frame.more:
            frame = self._socket.recv(copy=False)
        return payload

    def _watch(self) -> int:
        """End a connection that has more under way than it may; return how many bytes it has."""
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                connected = event["event"] == zmq.EVENT_CONNECTED
                if connected or event["event"] in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_RETRIED):
                    self._undelivered = Undelivered(int(event["value"])) if connected else None
                    self._ended = not connected
                    self._note_connection(event["event"])
                else:
                    self._note_handshake(event["event"])
        if time.monotonic() >= self._next_key_at:
            self._next_key_at = math.inf
            self._take_next_key()
        if self._undelivered is None:
            return 0
        if not self._more:
            self._undelivered.drained()
        size = self._undelivered.size()
        if size > UNDER_WAY_BYTES:
            _log.warning(
                "ended the connection to %s: %d bytes are no whole message or came too fast", self._address, size
            )
            port = self._address.rpartition(":")[2]
            hang_up(self._undelivered.fd, int(port) if port.isdecimal() else None)
            self._undelivered = None
            self._trim_at = time.monotonic() + TRIM_S
        return size


class EmulatedLinkSocket(LinkSocket):
    """A connection under declared conditions: each way its messages take as long as such a link would need for them."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        curve: tuple[tuple[bytes, ...], bytes, bytes] | None,
        conditions: LinkConditions,
        started: float,
    ) -> None:
        """`started`: when the link began, from which declared blackouts count."""
        super().__init__(context, address, curve)
        self._up, self._down = conditions.ways(started)
        self._waiting_bytes = 0

    def put(self, payload: bytes, now: float) -> None:
        """Send a payload; it leaves when it would have arrived."""
        self._up.put(payload, len(payload), now)

    def turn(self, now: float) -> Iterator[bytes]:
        """Send and receive what is due; yield the payloads that would have arrived by now."""
        while (payload := self._up.take(now)) is not None:
            super().put(payload, now)
        for payload in super().turn(now):
            has_room = len(self._down) < MOST_WAITING and self._waiting_bytes + len(payload) <= MOST_WAITING_BYTES
            if has_room and self._down.put(payload, len(payload), now) < math.inf:
                self._waiting_bytes += len(payload)
        while (payload := self._down.take(now)) is not None:
            self._waiting_bytes -= len(payload)
            yield payload

    def wait(self, until: float, wake: socket.socket, now: float) -> None:
        """Return when something is due or has arrived, at the latest at `until`."""
        super().wait(min(until, self._up.due, self._down.due), wake, now)

    def close(self) -> None:
        """Close the connection and drop what is under way; safe to repeat."""
        super().close()
        self._up.clear()
        self._down.clear()
        self._waiting_bytes = 0
