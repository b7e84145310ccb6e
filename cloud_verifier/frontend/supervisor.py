"""Starts the frontend's process, and another one whenever it ends; to the engine it is a `Post`.

What peers know of each other is in the sessions, so a new frontend needs nothing of the one before: its peers are new
ones, their robots find no session, send Hello with their resume token, and the answer goes on where it stands.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from cloud_verifier.frontend.messages import (
    Admit,
    Arrived,
    Close,
    Deliver,
    Failed,
    Forget,
    FromFrontend,
    FrontendSettings,
    Line,
    Lost,
    Opened,
    Revoked,
)
from cloud_verifier.frontend.pipe import Closed, Pipe
from cloud_verifier.security import check_bind
from cloud_verifier.start_error import StartError
from speculation import wire

_log = logging.getLogger("cloud_verifier")

MOST_WAITING_BYTES = 16 << 20
"""So much may wait for a frontend that takes nothing; beyond, robots lose their connection and resume."""
MOST_READ_BYTES = 16 << 20
"""So much is read ahead to see whose mail waits."""
FROZEN_S = 3.0
"""A frontend that has sent nothing for so long, not even that it is alive, is ended."""
START_S = 30.0
"""How long a frontend may take to open."""
LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 0.8
"""The pause before the next frontend, where one ends before it is open; each is twice the last."""
CLOSE_S = 2.0


def start_process(module: str, settings: msgspec.Struct, *passed: int | None) -> subprocess.Popen[bytes]:
    """Start a module with its settings as JSON and these descriptors, where there are such. Raises OSError.

    In a session of its own: a Ctrl-C reaches all processes of a terminal, this one perhaps while it starts.
    """
    command = [sys.executable, "-m", module, msgspec.json.encode(settings, enc_hook=str).decode()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    descriptors = tuple(each for each in passed if each is not None)
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=descriptors, env=environment, start_new_session=True
    )


def _listen(address: str) -> tuple[int | None, str]:
    """Return the descriptor of a socket that listens at a ZeroMQ address, and the address with its port.

    It stays with the engine's process, so that the address is taken when the frontend ends: robots that connect while
    there is none wait in the kernel's queue for the next one, and are not refused.

    No descriptor for `ipc://`, which every frontend binds anew. Raises StartError for an address that cannot be bound.
    """
    if not address.startswith("tcp://"):
        return None, address
    # ZeroMQ resolves wildcards, names and interfaces as the frontend would; nothing is received here.
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    monitor = router.get_monitor_socket(zmq.EVENT_LISTENING)
    try:
        router.ipv6 = "[" in address
        router.bind(address)
        descriptor = os.dup(int(parse_monitor_message(monitor.recv_multipart())["value"]))
        endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return descriptor, endpoint.rstrip(b"\0").decode()
    except zmq.ZMQError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            reason = "no interface of this machine has this name or address"
        raise StartError(f"--bind {address}: {reason}") from None
    finally:
        router.disable_monitor()
        monitor.close(linger=0)
        router.close(linger=0)
        context.term()


class Frontend:
    """The verifier's socket in a process of its own, a `cloud_verifier.interfaces.Post`. Peers are opaque names."""

    def __init__(
        self, bind: str, keys: Path | None = None, allow_plain: bool = False, bytes_per_s: float = 0.0
    ) -> None:
        """Raises StartError for an address that cannot be bound or keys that cannot be used."""
        check_bind(bind, keys is not None, allow_plain)
        self._keys, self._bytes_per_s = keys, bytes_per_s
        self._listener, self.address = _listen(bind)
        self.pid = 0
        self.restarts = 0
        """How many frontends have ended and were followed by another."""
        self.dropped = 0
        """How many messages found their peer's queue full, in all frontends so far, as reported last."""
        self._using = threading.RLock()
        """Lock that is held around every use of what stands below; the thread puts the next frontend in its place."""
        self._pipe: Pipe[FromFrontend] | None = None
        self._notice_in, self._notice_out = socket.socketpair()
        self._notice_in.setblocking(False)
        self._notice_out.setblocking(False)
        """Descriptors that end a wait, too."""
        self._opened, self._read_at = False, 0.0
        self._reason = ""
        self._clients: dict[bytes, str] = {}
        """The peers that may be sent to, and whose key each has."""
        self._named: set[str] = set()
        """The clients that were connected since they were authorized."""
        self._mail: deque[Arrived] = deque()
        self._mail_bytes = 0
        self._revoked: list[str] = []
        self._closing = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._supervise, name="frontend", daemon=True)
        self._wait_open()
        self._thread.start()

    # --- for the server's thread; `notify` for any

    def wait(self, seconds: float) -> None:
        """Return when there is mail, after `notify`, or after `seconds`."""
        with self._using:
            self._flush()
            idle = not self._mail and not self._take()
            poll = select.poll()
            poll.register(self._notice_out, select.POLLIN)
            if self._pipe is not None:
                poll.register(self._pipe, select.POLLIN | (select.POLLOUT if self._pipe.backlog else 0))
        if idle and seconds >= 0.001:
            poll.poll(int(seconds * 1000))
        elif idle and seconds > 0.0:
            time.sleep(seconds)  # it counts in whole milliseconds
        with contextlib.suppress(BlockingIOError):
            while self._notice_out.recv(4096):
                pass
        with self._using:
            self._flush()
            if not self._mail and not self._take():  # only what was read to its end can be called silent
                self._end_frozen()

    def notify(self) -> None:
        """Make `wait` return."""
        with contextlib.suppress(OSError):  # a full pipe is notice enough; a closed one needs none
            self._notice_in.send(b"\0")

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Return a peer and the frames of its next message, in the frontend's fair turns; None where there is none."""
        with self._using:
            while self._mail or self._take():
                while self._mail:
                    mail = self._mail.popleft()
                    self._mail_bytes -= sum(map(len, mail.frames))
                    if mail.peer in self._clients:
                        return mail.peer, mail.frames
        return None

    def client(self, peer: bytes) -> str:
        """Return the name of a peer's key; empty where there are no keys, or the peer is gone."""
        with self._using:
            return self._clients.get(peer, "")

    def revoked(self) -> list[str]:
        """Return the clients whose keys were taken back since the last call."""
        with self._using:
            revoked, self._revoked = self._revoked, []
            return revoked

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool:
        """Send, soon. Returns False where the peer is gone, took nothing of late, or the frontend takes nothing.

        A `droppable` message is dropped where what was sent before is not taken.
        """
        payload = wire.encode(message)
        with self._using:
            if peer not in self._clients or self._pipe is None:
                return False
            if self._pipe.backlog and droppable:
                return True
            if self._pipe.backlog > MOST_WAITING_BYTES:
                return False
            self._put(Deliver(peer, payload, droppable))
            return peer in self._clients

    def admit(self, peer: bytes, has_session: bool = True) -> None:
        """Note whether a peer has a session: only then may it send whole frames."""
        self._put(Admit(peer, has_session))

    def waits(self, peer: bytes) -> bool:
        """Whether a peer may have mail that was not received yet."""
        with self._using:
            while self._mail_bytes < MOST_READ_BYTES and self._take():
                pass
            more = self._mail_bytes >= MOST_READ_BYTES or (self._pipe is not None and self._pipe.in_the_middle)
            return more or any(mail.peer == peer for mail in self._mail)

    def forget(self, peer: bytes) -> None:
        """Drop what waits for a peer."""
        self._put(Forget(peer))

    def close(self) -> None:
        """Let the frontend send what can be sent within its linger time, and end it; safe to repeat."""
        if self._closing.is_set():
            return
        with self._using:
            self._closing.set()
            self._put(Close())
            process = self._process
        until = time.monotonic() + CLOSE_S
        while process.poll() is None and time.monotonic() < until:
            with self._using:
                self._flush()
                if not self._take():
                    time.sleep(0.005)
        process.kill()
        if self._thread.ident is not None:
            self._thread.join()
        process.wait()
        with self._using:
            if self._pipe is not None:
                self._pipe.close()
                self._pipe = None
        for end in (self._notice_in, self._notice_out):
            end.close()
        if self._listener is not None:
            os.close(self._listener)

    # --- the pipe

    def _put(self, message: msgspec.Struct) -> None:
        with self._using:
            if self._pipe is not None:
                try:
                    self._pipe.put(message)
                except Closed:
                    self._lose()

    def _flush(self) -> None:
        if self._pipe is not None:
            try:
                self._pipe.flush()
            except Closed:
                self._lose()

    def _take(self) -> bool:
        """Read once what the frontend has sent; return whether there was anything."""
        if self._pipe is None:
            return False
        got = self._pipe.in_the_middle
        try:
            for message in self._pipe.get():
                got = True
                self._note(message)
        except (Closed, ValueError) as error:
            if isinstance(error, ValueError):  # whoever sends that is no frontend of ours any more
                _log.error("the frontend sent what is no message: %s", error)
                self._process.kill()
            self._lose()
            return False
        if got:
            self._read_at = time.monotonic()
        return got

    def _note(self, message: FromFrontend) -> None:
        if isinstance(message, Arrived):
            self._clients[message.peer] = message.client
            if message.client:
                self._named.add(message.client)
            self._mail.append(message)
            self._mail_bytes += sum(map(len, message.frames))
        elif isinstance(message, Lost):
            self._clients.pop(message.peer, None)
        elif isinstance(message, Revoked):
            self._revoked.append(message.client)
            self._named.discard(message.client)
        elif isinstance(message, Line):
            _log.log(message.level, "%s", message.text)
        elif isinstance(message, Opened):
            self._opened, self.address, self._reason = True, message.address, ""
            # A key that was taken back while there was no frontend is one that the new frontend has never seen.
            self._revoked += sorted(self._named - set(message.clients))
            self._named &= set(message.clients)
        elif isinstance(message, Failed):
            self._reason = message.reason
        else:
            self.dropped += message.dropped

    def _lose(self) -> None:
        """Forget the frontend: its peers are gone, and what they sent last is nobody's."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self._clients.clear()
        self._mail.clear()
        self._mail_bytes = 0

    def _end_frozen(self) -> None:
        """End a frontend that is there and does nothing. What it had sent was read before."""
        limit = FROZEN_S if self._opened else START_S
        if self._pipe is not None and time.monotonic() - self._read_at > limit:
            _log.error("the frontend (process %d) has sent nothing for %g s; ending it", self.pid, limit)
            self._process.kill()
            self._lose()

    # --- the process

    def _start(self) -> subprocess.Popen[bytes]:
        """Start a frontend and connect to it."""
        ours, theirs = socket.socketpair()
        settings = FrontendSettings(
            theirs.fileno(), self.address, self._listener, self._keys, self.restarts, self._bytes_per_s
        )  # fmt: skip
        with theirs:
            process = start_process("cloud_verifier.frontend", settings, theirs.fileno(), self._listener)
        with self._using:
            self._lose()
            self._process, self.pid = process, process.pid
            self._pipe, self._opened, self._read_at = Pipe(ours, FromFrontend), False, time.monotonic()
        self.notify()
        return process

    def _wait_open(self) -> None:
        """Wait for the first frontend. Raises StartError, with its reason, where it ends instead."""
        until = time.monotonic() + START_S
        while not self._opened:
            if time.monotonic() > until:
                self._reason = f"the frontend's process did not open its socket within {START_S:g} s"
                self._process.kill()
            ended = self._process.poll() is not None
            with self._using:
                if not self._take() and ended:
                    self.close()
                    raise StartError(self._reason or f"the frontend's process ended with {self._process.returncode}")
            time.sleep(0.005)

    def _supervise(self) -> None:
        """Start the next frontend whenever one ends. In its own thread: the server's may be in the midst of a pass."""
        pause = 0.0
        while True:
            code = self._process.wait()
            if self._closing.is_set():
                return
            with self._using:
                self._take()
            why = self._reason or (f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}")
            self._reason = ""
            _log.error("the frontend (process %d): %s; starting another, robots connect again", self.pid, why)
            pause = 0.0 if self._opened else max(LEAST_PAUSE_S, min(2.0 * pause, MOST_PAUSE_S))
            if self._closing.wait(pause):
                return
            with self._using:
                if self._closing.is_set():
                    return
                self.restarts += 1
                try:
                    self._start()
                except OSError as error:  # out of processes or descriptors, for a while perhaps
                    self._opened = False
                    _log.error("no frontend can be started: %s; trying again", error)
