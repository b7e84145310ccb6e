"""The replica's side of a cluster: it joins its supervisor, checks tickets, reports, and drains when it is to."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cloud_verifier.cluster.channel import Channel, ChannelClosed, Charge, Drain, Join, Report, Shed
from cloud_verifier.cluster.directory import Phase, Status
from cloud_verifier.cluster.tickets import Tickets
from cloud_verifier.config import StartError
from cloud_verifier.slo import Standing

_log = logging.getLogger("cloud_verifier")

KEY_S = 1.0
"""How often the server's public key is read."""


class Member:
    """One replica by name."""

    def __init__(self, name: str, supervisor: Path, max_sessions: int) -> None:
        """Join. Raises StartError where nobody supervises at that path, or it has no place for this replica."""
        self.name = name
        self._max_sessions = max_sessions
        self._born = time.time()
        self._address = self._server_key = ""
        self._read_key: Callable[[], str] = str
        self._key_read_at = -math.inf
        self._leaving = False
        try:
            self._channel: Channel[Charge | Drain | Shed] = Channel.connect(supervisor, Charge | Drain | Shed)
            self._channel.send(Join(name))
            charge = self._channel.receive()
        except ChannelClosed as error:
            raise StartError(f"--supervisor {supervisor}: {error}") from None
        if not isinstance(charge, Charge):
            raise StartError(f"--supervisor {supervisor}: it did not take replica {name!r}")
        self._tickets = Tickets(charge.secret)
        self._host = charge.host
        self._send(Status(name, Phase.JOINING, self._born))

    def check_ticket(self, ticket: bytes, client: str) -> None:
        """Raise TicketError unless a ticket admits a client here now."""
        self._tickets.check(ticket, self.name, client, time.time())

    def serves_at(self, address: str, server_key: Callable[[], str]) -> None:
        """Note the address that was bound, whose host is replaced by the one that robots reach.

        `server_key` returns the public key, which may be changed while it serves. Raises StartError where it cannot.
        """
        self._address = f"tcp://{self._host}:{address.rpartition(':')[2]}"
        self._read_key, self._server_key = server_key, server_key()

    def follow(self, drain: Callable[[], None], shed: Callable[[int], None]) -> None:
        """Let these be called, in a thread of its own, when this replica is to drain, or its supervisor is gone, and
        when it is to send some robots elsewhere."""
        threading.Thread(target=self._follow, args=(drain, shed), name="member", daemon=True).start()

    def report(self, standing: Standing) -> None:
        """Report how the server stands."""
        now = time.monotonic()
        if now - self._key_read_at > KEY_S:
            self._key_read_at = now
            with contextlib.suppress(StartError):  # it is being replaced: the one before goes on
                self._server_key = self._read_key()
        phase = Phase.DRAINING if standing.draining else Phase.READY
        self._send(
            Status(
                self.name, phase, self._born, self._address, self._server_key, standing.sessions, self._max_sessions,
                min(1.0, max(0.0, standing.memory)), standing.utilisation, standing.late,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Leave; safe to repeat."""
        self._leaving = True
        self._channel.close()

    def _send(self, status: Status) -> None:
        with contextlib.suppress(ChannelClosed):  # the thread that follows the supervisor notices its end
            self._channel.send(Report(status))

    def _follow(self, drain: Callable[[], None], shed: Callable[[int], None]) -> None:
        try:
            while not isinstance(message := self._channel.receive(), Drain):
                if isinstance(message, Shed):
                    shed(message.robots)
        except ChannelClosed:
            if self._leaving:
                return
            _log.warning("the supervisor of replica %s is gone: draining", self.name)
        drain()
