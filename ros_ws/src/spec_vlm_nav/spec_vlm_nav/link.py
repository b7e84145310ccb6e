"""The robot's end of the wire: a ZeroMQ DEALER in a thread of its own, which neither blocks nor is blocked by drafting.

Liveness is silence: whatever the verifier says counts as a sign of life, and a `Ping` asks for one. After silence the
socket is thrown away and made anew, so that nothing old can arrive late; a session is opened again by itself.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import zmq
import zmq.auth

from speculation.drafting.model import Clock, LinkLost
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

_RETRY_LATER = {FaultCode.SERVER_FULL, FaultCode.NO_SESSION, FaultCode.INTERNAL}
_SESSION_FAULTS = {
    FaultCode.PROTOCOL_MISMATCH,
    FaultCode.TOKENIZER_MISMATCH,
    FaultCode.MODEL_MISMATCH,
    FaultCode.UNSUPPORTED_SAMPLING,
    FaultCode.SERVER_FULL,
    FaultCode.NO_SESSION,
}


class LinkState(str, Enum):
    """What the link is worth now."""

    CONNECTING = "connecting"
    NOMINAL = "nominal"
    SILENT = "silent"
    REFUSED = "refused"


@dataclass(frozen=True)
class LinkConfig:
    """Where the verifier is and how patient the link is, seconds.

    silence_s: nothing heard for this long is a lost link. ping_s: how often a sign of life is asked for. hello_s: how
    often an unanswered `Hello` is repeated. one_way_s: declared delay of every message in each direction (a device
    profile's). keys: folder with server.key and NAME.key_secret; None is plain TCP.
    """

    address: str
    silence_s: float = 2.0
    ping_s: float = 0.5
    hello_s: float = 0.5
    one_way_s: float = 0.0
    keys: Path | None = None

    def __post_init__(self) -> None:
        if not self.address.startswith(("tcp://", "ipc://")):
            raise ValueError(f"verifier address {self.address!r} is none; write tcp://HOST:PORT")
        if not 0 < self.ping_s < self.silence_s:
            raise ValueError(f"silence_s {self.silence_s} must be longer than ping_s {self.ping_s}, both above 0")


class VerifierLink:
    """Opens a session and keeps it; satisfies `speculation.drafting.model.Link`.

    `send` and `receive` belong to one drafting thread; everything else may be read from any thread.
    """

    HIGH_WATER = 16

    def __init__(self, config: LinkConfig, hello: Hello, clock: Clock = time.monotonic) -> None:
        """Starts at once. Raises ValueError for keys that cannot be used."""
        self.config = config
        self._hello = hello
        self._clock = clock
        self._keys = None if config.keys is None else _load_keys(config.keys)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wake_address = f"inproc://wake-{id(self)}"
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_in.bind(self._wake_address)
        self._lock = threading.Lock()
        self._outbox: deque[AnyMessage] = deque()
        self._inbox: queue.Queue[AnyMessage | LinkLost] = queue.Queue()
        self._ready = threading.Event()
        self._state, self._reason = LinkState.CONNECTING, f"no verifier at {config.address} has answered yet"
        self._welcome: Welcome | None = None
        self._rtt_s = -1.0
        self._bytes_up = self._bytes_down = 0
        self._closing = False
        self._thread = threading.Thread(target=_Worker(self).run, name="verifier-link", daemon=True)
        self._thread.start()

    @property
    def state(self) -> LinkState:
        """What the link is worth now."""
        return self._state

    @property
    def reason(self) -> str:
        """Why the link is not nominal, for people; empty when it is."""
        return self._reason

    @property
    def welcome(self) -> Welcome | None:
        """The session's terms; None while there is no session."""
        return self._welcome

    @property
    def rtt_s(self) -> float:
        """The last measured round trip of a ping in seconds, declared delays included; negative before the first."""
        return self._rtt_s

    @property
    def bytes_up(self) -> int:
        """Payload bytes sent since the link was opened."""
        return self._bytes_up

    @property
    def bytes_down(self) -> int:
        """Payload bytes received since the link was opened."""
        return self._bytes_down

    def wait_ready(self, timeout: float) -> Welcome:
        """Return the session's terms. Raises LinkLost, with the reason, when there is no session within `timeout`."""
        self._ready.wait(timeout)
        welcome = self._welcome
        if self._state is not LinkState.NOMINAL or welcome is None:
            raise LinkLost(self._reason)
        return welcome

    def send(self, message: AnyMessage) -> None:
        """Queue a message; a `BeginStep` first drops what still came for the step before.

        Raises LinkLost when there is no session.
        """
        if self._state is not LinkState.NOMINAL:
            raise LinkLost(self._reason)
        if isinstance(message, BeginStep):
            while not self._inbox.empty():
                self._inbox.get_nowait()
        self._outbox.append(message)
        self._wake()

    def receive(self, timeout: float) -> AnyMessage | None:
        """Return the next message, None after `timeout` seconds. Raises LinkLost when the session is gone."""
        try:
            item = self._inbox.get_nowait() if timeout <= 0 else self._inbox.get(timeout=timeout)
        except queue.Empty:
            if self._state is not LinkState.NOMINAL:
                raise LinkLost(self._reason) from None
            return None
        if isinstance(item, LinkLost):
            raise item
        return item

    def close(self) -> None:
        """Close the socket and join the thread."""
        if self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join(timeout=5.0)
        self._wake_in.close(linger=0)
        self._context.destroy(linger=0)

    def _wake(self) -> None:
        # A full pipe holds a thousand wake-ups already.
        with self._lock, contextlib.suppress(zmq.Again):
            self._wake_in.send(b"", zmq.NOBLOCK)


class _Worker:
    """The link's thread: the only user of the DEALER socket."""

    def __init__(self, link: VerifierLink) -> None:
        self._link = link
        self._config = link.config
        self._clock = link._clock
        self._wake_out = link._context.socket(zmq.PAIR)
        self._wake_out.connect(link._wake_address)
        self._socket = self._open()
        self._count = itertools.count()
        # (due, order, message) of declared delays; up are encoded at departure.
        self._up: list[tuple[float, int, AnyMessage]] = []
        self._down: list[tuple[float, int, bytes]] = []
        self._heard_at = self._clock()
        self._hello_at = self._ping_at = -1e9
        self._pings: dict[int, float] = {}

    def run(self) -> None:
        link = self._link
        try:
            while not link._closing:
                self._turn()
        finally:
            self._socket.close(linger=0)
            self._wake_out.close(linger=0)

    def _turn(self) -> None:
        now = self._clock()
        self._keep_alive(now)
        link = self._link
        while link._outbox:
            self._post(link._outbox.popleft(), now)
        blocked = self._flush_up(now)
        timeout = self._next_due(now)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        if blocked:
            timeout = min(timeout, 0.01)
        if 0.0 < timeout < 0.001:
            time.sleep(timeout)
        events = dict(poller.poll(int(max(0.0, timeout) * 1000)))
        if self._wake_out in events:
            self._drain_wakes()
        now = self._clock()
        if self._socket in events:
            self._read(now)
        while self._down and self._down[0][0] <= now:
            self._take(heapq.heappop(self._down)[2], now)

    def _next_due(self, now: float) -> float:
        times = [0.1]
        times += [heap[0][0] - now for heap in (self._up, self._down) if heap]
        return min(times)

    def _drain_wakes(self) -> None:
        try:
            while True:
                self._wake_out.recv(zmq.NOBLOCK)
        except zmq.Again:
            return

    def _keep_alive(self, now: float) -> None:
        link, config = self._link, self._config
        if link._state is LinkState.NOMINAL:
            if now - self._heard_at > config.silence_s:
                self._lose(f"nothing heard from the verifier at {config.address} for {config.silence_s:g} s")
            elif now - self._ping_at >= config.ping_s:
                self._ping_at = now
                nonce = next(self._count)
                self._pings = dict(list(self._pings.items())[-8:]) | {nonce: now}
                self._post(Ping(nonce), now)
        if link._state is not LinkState.NOMINAL and now - self._hello_at >= config.hello_s:
            # A refused edge asks again at a walking pace: a verifier with another model may take its place.
            if link._state is LinkState.REFUSED and now - self._hello_at < 4 * config.hello_s:
                return
            if now - self._heard_at > config.silence_s:
                self._reopen(now)
            self._hello_at = now
            resume = link._welcome.session if link._welcome is not None else ""
            self._up = [entry for entry in self._up if not isinstance(entry[2], Hello)]
            heapq.heapify(self._up)
            self._post(replace_resume(link._hello, resume), now)

    def _lose(self, reason: str) -> None:
        link = self._link
        link._state, link._reason = LinkState.SILENT, f"{reason}; is it running, and is the network up?"
        link._ready.clear()
        link._inbox.put(LinkLost(link._reason))
        self._hello_at = -1e9

    def _reopen(self, now: float) -> None:
        self._socket.close(linger=0)
        self._socket = self._open()
        self._heard_at = now
        self._up.clear()
        self._down.clear()
        self._link._outbox.clear()

    def _open(self) -> zmq.Socket[bytes]:
        socket = self._link._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.immediate = True
        socket.sndhwm = socket.rcvhwm = VerifierLink.HIGH_WATER * 4
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 500
        keys = self._link._keys
        if keys is not None:
            socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = keys
        socket.connect(self._config.address)
        return socket

    def _post(self, message: AnyMessage, now: float) -> None:
        heapq.heappush(self._up, (now + self._config.one_way_s, next(self._count), message))

    def _flush_up(self, now: float) -> bool:
        """Send what is due; True where the socket takes no more for now."""
        while self._up and self._up[0][0] <= now:
            payload = encode(self._up[0][2])
            try:
                self._socket.send(payload, zmq.NOBLOCK)
            except zmq.Again:
                return True
            heapq.heappop(self._up)
            self._link._bytes_up += len(payload)
        return False

    def _read(self, now: float) -> None:
        try:
            while True:
                payload = self._socket.recv(zmq.NOBLOCK)
                self._link._bytes_down += len(payload)
                heapq.heappush(self._down, (now + self._config.one_way_s, next(self._count), payload))
        except zmq.Again:
            return

    def _take(self, payload: bytes, now: float) -> None:
        link = self._link
        self._heard_at = now
        try:
            message = decode(payload)
        except WireError as error:
            link._inbox.put(LinkLost(f"the verifier at {self._config.address} speaks another protocol: {error}"))
            return
        match message:
            case Welcome():
                self._welcome(message, now)
            case Ping(nonce):
                self._post(Pong(nonce), now)
            case Pong(nonce):
                sent = self._pings.pop(nonce, None)
                if sent is not None:
                    link._rtt_s = now - sent
            case Fault() if message.code in _SESSION_FAULTS:
                self._refused(message)
            case _:
                link._inbox.put(message)

    def _welcome(self, welcome: Welcome, now: float) -> None:
        link = self._link
        if welcome.tokenizer != link._hello.tokenizer:
            link._state = LinkState.REFUSED
            link._reason = (
                f"the verifier's tokenizer {welcome.tokenizer} is not the draft model's {link._hello.tokenizer}; "
                "use a draft and a target of one family"
            )
            return
        link._welcome = welcome
        if link._state is not LinkState.NOMINAL:
            link._state, link._reason = LinkState.NOMINAL, ""
            self._ping_at = now - self._config.ping_s
            link._ready.set()

    def _refused(self, fault: Fault) -> None:
        link = self._link
        later = fault.code in _RETRY_LATER
        if fault.code is FaultCode.NO_SESSION:
            link._welcome = None
        link._state = LinkState.CONNECTING if later else LinkState.REFUSED
        link._reason = f"the verifier at {self._config.address} refuses: {fault.message}"
        link._ready.clear()
        link._inbox.put(LinkLost(link._reason))
        if fault.code is FaultCode.NO_SESSION:
            self._hello_at = -1e9


def replace_resume(hello: Hello, resume: str) -> Hello:
    """Return a `Hello` that asks for the session `resume`; empty opens a new one."""
    values = {name: getattr(hello, name) for name in hello.__struct_fields__}
    return Hello(**{**values, "resume": resume})


def _load_keys(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Return (public, secret, server) CURVE keys. Raises ValueError, in one sentence, where they are missing."""
    secrets = [path for path in sorted(folder.glob("*.key_secret")) if path.stem != "server"]
    if len(secrets) != 1:
        names = ", ".join(path.name for path in secrets) or "none"
        raise ValueError(f"keys folder {folder} must hold one robot's NAME.key_secret, it has {names}")
    try:
        server, _ = zmq.auth.load_certificate(folder / "server.key")
        public, secret = zmq.auth.load_certificate(secrets[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"keys folder {folder}: {error}; make keys with python -m cloud_verifier keygen") from None
    if secret is None:
        raise ValueError(f"keys folder {folder}: {secrets[0].name} holds no secret key")
    return public, secret, server
