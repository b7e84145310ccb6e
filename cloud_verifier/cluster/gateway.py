"""Answers every Hello with the replica to go to, and keeps nothing of a robot."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable

from cloud_verifier.cluster.directory import Directory
from cloud_verifier.cluster.tickets import Tickets
from cloud_verifier.interfaces import Post
from cloud_verifier.limits import Rate
from cloud_verifier.outbox import REFUSALS_AT_ONCE, REFUSALS_PER_S
from cloud_verifier.sessions import message_of
from speculation import wire
from speculation.text import printable

_log = logging.getLogger("cloud_verifier")

MESSAGES_PER_TURN = 256
BACK_S = 2.0
"""A robot that is back so soon was not served where it was sent."""
RETRY_S = 1.0
"""A robot for which there is no replica waits for about so long."""


class Gateway:
    """Sends robots on. `wall` gives seconds since 1970, for tickets."""

    def __init__(
        self,
        mailbox: Post,
        directory: Directory,
        tickets: Tickets,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._mailbox, self._directory, self._tickets = mailbox, directory, tickets
        self._clock, self._wall = clock, wall
        self._allowance = Rate.counted(REFUSALS_PER_S, REFUSALS_AT_ONCE)
        self._lines = Rate.counted(1.0, 10)
        self._dice = random.Random()
        self.redirected = self.turned_away = 0
        """How many robots were sent to a replica, and for how many there was none."""

    def turn(self, wait_s: float) -> None:
        """Answer what has come, after waiting for at most `wait_s` seconds."""
        self._mailbox.wait(wait_s)
        for _ in range(MESSAGES_PER_TURN):
            received = self._mailbox.receive()
            if received is None:
                break
            self._answer(*received)

    def _answer(self, peer: bytes, frames: list[bytes]) -> None:
        if not self._allowance.take(peer, self._clock()):
            return
        try:
            message = message_of(frames)
        except wire.WireError as error:
            code, text = wire.FaultCode.MALFORMED, printable(str(error), wire.MAX_TEXT_CHARS - 50)
            self._mailbox.send(peer, wire.Fault(code, text), droppable=True)
            return
        reply = self._reply(peer, message)
        if reply is not None:
            self._mailbox.send(peer, reply, droppable=True)

    def _reply(self, peer: bytes, message: wire.AnyMessage) -> wire.AnyMessage | None:
        if isinstance(message, wire.Ping):
            return wire.Pong(message.nonce)
        if not isinstance(message, wire.Hello):
            text = f"no session: this is a cluster's gateway, which takes no {type(message).__name__}; send Hello"
            return wire.Fault(wire.FaultCode.NO_SESSION, text, getattr(message, "step", None))
        if message.protocol != wire.PROTOCOL:
            text = f"Hello.protocol {message.protocol}: this gateway has {wire.PROTOCOL}; install the same version"
            return wire.Fault(wire.FaultCode.PROTOCOL_MISMATCH, text)
        return self._place(peer, message)

    def _place(self, peer: bytes, hello: wire.Hello) -> wire.Redirect | wire.Busy:
        """Return where a robot is to go, or when it may ask again."""
        now, client = self._clock(), self._mailbox.client(peer)
        before = self._tickets.before(hello.ticket, client)
        # Without keys a robot is known by the ticket that it had; at first by nothing.
        key = client or (before.key if before is not None else secrets.token_hex(8))
        known = before.replica if before is not None else ""
        is_back = before is not None and self._tickets.age(before, self._wall()) < BACK_S
        found = self._directory.choose(key, now, hello.prefix, *(("", known) if is_back else (known, "")))
        if found is None:
            self.turned_away += 1
            ready = len(self._directory.ready(now))
            text = f"all {ready} replicas are full (--max-sessions, --max)" if ready else "no replica is ready yet"
            if self._lines.take(None, now):
                _log.warning("a robot was turned away: %s", text)
            return wire.Busy(RETRY_S * self._dice.uniform(0.5, 1.5), text)
        self.redirected += 1
        return wire.Redirect(found.address, found.server_key, self._tickets.sign(found.name, client, key, self._wall()))
