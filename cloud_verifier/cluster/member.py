"""A replica's side of its cluster: checks tickets, notes how its server stands, and drains when it is to."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from cloud_verifier.cluster.directory import REPORT_S, Phase, Status
from cloud_verifier.cluster.tickets import Tickets
from cloud_verifier.config import StartError
from cloud_verifier.slo import Standing
from speculation.address import host_of

WILDCARDS = ("0.0.0.0", "[::]")
KEY_S = 1.0
"""The server's public key is read so often."""


class Member:
    """Speaks for one replica. Its methods are for any thread."""

    def __init__(self, name: str, host: str, secret: bytes, session_places: int) -> None:
        """`host` is how this machine is reached where the server is bound to all addresses, `secret` the cluster's."""
        self.name, self._host, self._session_places = name, host, session_places
        self._tickets = Tickets(secret)
        self._address = self._server_key = ""
        self._read_key: Callable[[], str] = str
        self._key_read_at = -math.inf
        self._drain: Callable[[], None] | None = None
        self._shed: Callable[[int], None] | None = None
        self._status = Status(name, Phase.JOINING, time.time())
        self._reported = threading.Event()
        """Set where there is a report that `next_status` has not returned."""

    def check_ticket(self, ticket: bytes, client: str) -> None:
        """Raise TicketError unless a ticket admits a client here now."""
        self._tickets.check(ticket, self.name, client, time.time())

    def serves_at(
        self, address: str, server_key: Callable[[], str], drain: Callable[[], None], shed: Callable[[int], None]
    ) -> None:
        """Note the address at which the server is bound, and how it drains and sheds.

        `server_key` returns the public key, which may be changed while it serves. Raises StartError where it cannot.
        """
        everywhere = host_of(address) in WILDCARDS
        self._address = f"tcp://{self._host}:{address.rpartition(':')[2]}" if everywhere else address
        self._read_key, self._server_key = server_key, server_key()
        self._drain, self._shed = drain, shed

    def drain(self) -> bool:
        """Let the server send its robots elsewhere and end. Returns False where there is none yet."""
        if self._drain is None:
            return False
        self._drain()
        return True

    def shed(self, robots: int) -> None:
        """Let the server send so many robots elsewhere."""
        if self._shed is not None:
            self._shed(robots)

    def report(self, standing: Standing) -> None:
        """Take in how the server stands."""
        now = time.monotonic()
        if now - self._key_read_at > KEY_S:
            self._key_read_at = now
            with contextlib.suppress(StartError):  # it is being replaced: the one before goes on
                self._server_key = self._read_key()
        phase = Phase.DRAINING if standing.draining else Phase.READY
        self._status = Status(
            self.name, phase, self._status.born, self._address, self._server_key, standing.sessions,
            self._session_places, min(1.0, max(0.0, standing.memory)), standing.utilisation, standing.late,
        )  # fmt: skip
        self._reported.set()

    def next_status(self) -> Status | None:
        """Wait for the server's next report and return it; None where a server that has reported does not do so.

        While it loads its model it is joining, and that is returned.
        """
        if not self._reported.wait(2.0 * REPORT_S) and self._status.phase is not Phase.JOINING:
            return None
        self._reported.clear()
        return self._status
