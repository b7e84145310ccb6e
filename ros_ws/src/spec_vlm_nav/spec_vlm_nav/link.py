"""The link to the verifier: a ZeroMQ DEALER in a thread of its own, so that neither drafting nor ROS waits for it.

It says Hello until somebody answers, pings, notices silence, opens a new connection and takes the session up again.
Declared conditions (`speculation.emulation`) hold for every message, Hellos and pings too, each way.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
import zmq
import zmq.auth

from speculation.address import check_address
from speculation.drafting import LinkLost
from speculation.emulation import IDEAL, EmulatedWay, LinkConditions
from speculation.wire import (
    MAX_MESSAGE_BYTES,
    AnyMessage,
    BeginStep,
    Fault,
    FaultCode,
    Hello,
    Ping,
    Pong,
    Welcome,
    WireError,
    decode,
    encode,
)

_log = logging.getLogger(__name__)
HIGH_WATER = 32
INBOX = 1024
RTT_WEIGHT = 0.2


class LinkState(str, Enum):
    """How the link is. Only in NOMINAL can a step begin."""

    CONNECTING = "connecting"
    NOMINAL = "nominal"
    SILENT = "silent"
    REFUSED = "refused"


@dataclass(frozen=True)
class Keys:
    """CURVE keys, z85: the server's public key, and this robot's pair."""

    server: bytes
    public: bytes
    secret: bytes


def load_keys(folder: Path) -> Keys:
    """Read `server.key` and the robot's one `NAME.key_secret`. Raises ValueError, naming what is missing."""
    robots = sorted(path for path in folder.glob("*.key_secret") if path.name != "server.key_secret")
    if len(robots) != 1:
        names = ", ".join(path.name for path in robots) or "none"
        raise ValueError(f"keys {folder}: expected one NAME.key_secret of this robot, found {names}")
    try:
        server, _ = zmq.auth.load_certificate(folder / "server.key")
        public, secret = zmq.auth.load_certificate(robots[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"keys {folder}: {error}; it must hold server.key and {robots[0].name}") from None
    if secret is None:
        raise ValueError(f"keys {folder}: {robots[0].name} holds no secret key")
    return Keys(server, public, secret)


@dataclass(frozen=True)
class LinkConfig:
    """Where the verifier is and how patient the link is, in seconds.

    conditions: what the link is declared to do; blackouts count from the link's start. silent_s: hearing nothing for so
    long, on top of the conditions' longest round trip, counts as silence. hello_s: an unanswered Hello is repeated.
    allow_plain: without keys, trust a verifier on another machine all the same.

    Raises ValueError for what is no address, and for another machine's without keys or allow_plain.
    """

    address: str
    hello: Hello
    keys: Keys | None = None
    conditions: LinkConditions = IDEAL
    ping_s: float = 0.25
    silent_s: float = 1.5
    hello_s: float = 1.0
    allow_plain: bool = False

    def __post_init__(self) -> None:
        check_verifier(self.address, self.keys is not None, self.allow_plain)


def check_verifier(address: str, encrypted: bool, allow_plain: bool) -> None:
    """Raise ValueError for what is no verifier's address, and for one that must not be trusted without keys."""
    try:
        check_address(address, encrypted, allow_plain, ("keys, a folder", "allow_plain"))
    except ValueError as error:
        raise ValueError(f"verifier {error}") from None


class ZmqLink:
    """A `speculation.drafting.Link` over ZeroMQ. `on_state` is called in the link's thread at every change."""

    def __init__(
        self,
        config: LinkConfig,
        on_state: Callable[[LinkState, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._on_state = on_state
        self._clock = clock
        self._changed = threading.Condition()
        self._state = LinkState.CONNECTING
        self._why = f"looking for a verifier at {config.address}"
        self._welcome: Welcome | None = None
        self._epoch = self._step_epoch = 0
        self._heard_at: float | None = None
        self._rtt: float | None = None
        self._bytes = [0, 0]
        self._inbox: queue.Queue[AnyMessage | None] = queue.Queue(INBOX)
        self._outbox: deque[bytes] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    # -- for any thread

    @property
    def state(self) -> LinkState:
        """How the link is now."""
        return self._state

    @property
    def why(self) -> str:
        """The state as a sentence for people."""
        return self._why

    @property
    def welcome(self) -> Welcome | None:
        """What the verifier said about itself; None before the first handshake."""
        return self._welcome

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round trip of a ping in seconds; None before the first."""
        return self._rtt

    @property
    def heard_age_s(self) -> float | None:
        """Seconds since anything was heard; None before the first message."""
        return None if self._heard_at is None else self._clock() - self._heard_at

    @property
    def bytes_up(self) -> int:
        """Payload bytes of the steps' messages sent; pings and Hellos are not counted."""
        return self._bytes[0]

    @property
    def bytes_down(self) -> int:
        """Payload bytes of the steps' messages received."""
        return self._bytes[1]

    def wait_nominal(self, timeout: float) -> bool:
        """Return whether the link is nominal, at the latest after `timeout` seconds; a refusal is final for now."""
        with self._changed:
            self._changed.wait_for(lambda: self._state in (LinkState.NOMINAL, LinkState.REFUSED), timeout)
            return self._state is LinkState.NOMINAL

    def send(self, message: AnyMessage) -> None:
        """Queue a message; a `BeginStep` binds what follows to the session that stands now. Raises LinkLost."""
        with self._changed:
            if isinstance(message, BeginStep):
                self._step_epoch = self._epoch
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._inbox.get_nowait()
            self._check()
        payload = encode(message)
        self._bytes[0] += len(payload)
        self._outbox.append(payload)
        self._wake()

    def receive(self, timeout: float) -> AnyMessage | None:
        """Return the next message of the step, None after `timeout` seconds. Raises LinkLost, with the reason."""
        until = self._clock() + timeout
        while True:
            self._check()
            try:
                left = until - self._clock()
                message = self._inbox.get(timeout=left) if left > 0 else self._inbox.get_nowait()
            except queue.Empty:
                self._check()
                return None
            if message is not None:
                return message

    def close(self) -> None:
        """Stop the thread and free the socket; safe to repeat."""
        self._stopping = True
        self._wake()
        self._thread.join()
        self._wake_in.close()
        self._wake_out.close()

    def _check(self) -> None:
        if self._state is not LinkState.NOMINAL:
            raise LinkLost(self._why)
        if self._step_epoch != self._epoch:
            raise LinkLost("the verifier was restarted or lost this session; the step must begin again")

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes just as well; a closed one needs no waking
            self._wake_in.send(b"\0")

    # -- the link's thread

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        up, down = self.config.conditions.ways(self._clock())
        try:
            while not self._stopping:
                connection = _Connection(context, self.config, up, down)
                try:
                    self._serve(connection)
                finally:
                    connection.close()
        except Exception as error:
            _log.exception("the link's thread failed")
            self._become(LinkState.REFUSED, f"the link to the verifier failed: {error}")
        finally:
            context.term()

    def _serve(self, connection: _Connection) -> None:
        """Use one connection until it has been silent too long."""
        hello_at = ping_at = opened = self._clock()
        pings: dict[int, float] = {}
        nonces = itertools.count(1)
        limit = self.config.silent_s + self.config.conditions.longest_trip_s
        while not self._stopping:
            now = self._clock()
            nominal = self._state is LinkState.NOMINAL
            if not nominal and now >= hello_at:
                self._outbox.clear()
                session = self._welcome.session if self._welcome is not None else ""
                connection.put(encode(msgspec.structs.replace(self.config.hello, resume=session)), now)
                hello_at = now + self.config.hello_s
            if nominal and now >= ping_at:
                nonce = next(nonces)
                pings[nonce] = now
                connection.put(encode(Ping(nonce)), now)
                ping_at = now + self.config.ping_s
            while self._outbox:
                connection.put(self._outbox.popleft(), now)
            for payload in connection.turn(now):
                self._heard_at = now
                if self._take(payload, pings, connection, now):
                    hello_at = now
            quiet = now - max(opened, self._heard_at or opened)
            if quiet > limit:
                # A new connection, because the old one may wait minutes for a network that is gone.
                self._fall_silent(quiet)
                return
            nominal = self._state is LinkState.NOMINAL
            connection.wait(min(ping_at if nominal else hello_at, now + limit), self._wake_out, self._clock())

    def _take(self, payload: bytes, pings: dict[int, float], connection: _Connection, now: float) -> bool:
        """Handle one message; return whether a new Hello is due at once."""
        try:
            message = decode(payload)
        except WireError as error:
            _log.warning("ignored a message of the verifier: %s", error)
            return False
        nominal = self._state is LinkState.NOMINAL
        if isinstance(message, Welcome):
            self._greet(message)
        elif isinstance(message, Ping):
            connection.put(encode(Pong(message.nonce)), now)
        elif isinstance(message, Pong):
            sent = pings.pop(message.nonce, None)
            if sent is not None:
                self._rtt = now - sent if self._rtt is None else self._rtt + RTT_WEIGHT * (now - sent - self._rtt)
        elif isinstance(message, Fault) and message.code is FaultCode.NO_SESSION:
            if nominal:
                self._become(
                    LinkState.CONNECTING, "the verifier does not know this session any more; saying Hello again"
                )
                return True
        elif isinstance(message, Fault) and not nominal:
            self._become(LinkState.REFUSED, f"the verifier at {self.config.address} refuses: {message.message}")
        elif nominal:
            self._bytes[1] += len(payload)
            with contextlib.suppress(queue.Full):  # nobody listens between steps; a lost commit is sent again on demand
                self._inbox.put_nowait(message)
        return False

    def _greet(self, welcome: Welcome) -> None:
        hello = self.config.hello
        if (welcome.tokenizer, welcome.vocabulary) != (hello.tokenizer, hello.vocabulary):
            text = "its tokenizer is not the draft model's; draft and target must share one tokenizer"
            self._become(LinkState.REFUSED, f"the verifier at {self.config.address} does not fit: {text}")
            return
        if self._state is LinkState.NOMINAL:
            return
        self._welcome = welcome
        self._epoch += 1
        self._become(LinkState.NOMINAL, f"the verifier at {self.config.address} serves {welcome.model[:12]}")

    def _fall_silent(self, seconds: float) -> None:
        if self._state is LinkState.NOMINAL:
            self._become(
                LinkState.SILENT, f"nothing heard from the verifier at {self.config.address} for {seconds:.1f} s"
            )
        elif self._state is not LinkState.SILENT:
            why = f"no verifier answers at {self.config.address}; is it running there"
            why += ", and is this robot's key in its authorized folder?" if self.config.keys is not None else "?"
            self._become(LinkState.CONNECTING, why)

    def _become(self, state: LinkState, why: str) -> None:
        with self._changed:
            if (state, why) == (self._state, self._why):
                return
            changed = state is not self._state
            self._state, self._why = state, why
            self._changed.notify_all()
        with contextlib.suppress(queue.Full):
            self._inbox.put_nowait(None)
        if changed:
            (_log.info if state is LinkState.NOMINAL else _log.warning)("link %s: %s", state.value, why)
        if self._on_state is not None:
            self._on_state(state, why)


class _Connection:
    """One DEALER socket between the two emulated ways; used by the link's thread alone."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: LinkConfig,
        up: EmulatedWay[bytes],
        down: EmulatedWay[bytes],
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.immediate = True
        self._socket.sndhwm = self._socket.rcvhwm = HIGH_WATER
        self._socket.maxmsgsize = MAX_MESSAGE_BYTES
        self._socket.connect_timeout = 3000
        self._socket.reconnect_ivl_max = 1000
        if config.keys is not None:
            self._socket.curve_serverkey = config.keys.server
            self._socket.curve_publickey = config.keys.public
            self._socket.curve_secretkey = config.keys.secret
        self._socket.connect(config.address)
        self._up, self._down = up, down
        self._stuck: deque[bytes] = deque(maxlen=HIGH_WATER)

    def put(self, payload: bytes, now: float) -> None:
        """Send a payload; it leaves when it would have arrived."""
        self._up.put(payload, len(payload), now)

    def turn(self, now: float) -> list[bytes]:
        """Send and receive what is due."""
        while (payload := self._up.take(now)) is not None:
            self._stuck.append(payload)
        with contextlib.suppress(zmq.Again):
            while self._stuck:
                self._socket.send(self._stuck[0], zmq.NOBLOCK)
                self._stuck.popleft()
        with contextlib.suppress(zmq.Again):
            while True:
                payload = b"".join(self._socket.recv_multipart(zmq.NOBLOCK))
                self._down.put(payload, len(payload), now)
        received = []
        while (payload := self._down.take(now)) is not None:
            received.append(payload)
        return received

    def wait(self, until: float, wake: socket.socket, now: float) -> None:
        """Return when something is due or has arrived, at the latest at `until`."""
        seconds = min(until, self._up.due, self._down.due) - now
        if 0.0 < seconds < 0.001:
            time.sleep(seconds)  # zmq counts in whole milliseconds
            return
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._stuck else 0))
        poller.register(wake, zmq.POLLIN)
        poller.poll(max(0, int(seconds * 1000)))
        with contextlib.suppress(BlockingIOError):
            while wake.recv(4096):
                pass

    def close(self) -> None:
        """Close the socket; what is not sent, or not there yet, is dropped."""
        self._socket.close()
        self._up.clear()
        self._down.clear()
