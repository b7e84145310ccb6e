"""Signs and checks tickets, which a robot shows a replica, so that only those come in whom a gateway has sent there.

A ticket is signed with a secret of the cluster (HMAC-SHA256, RFC 2104), names one replica and one client, and is
short-lived. It can be copied, but is of use to the same key, at the same replica, for seconds. Without CURVE there are
no client keys: then it holds whoever has it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from speculation.wire import MAX_TICKET_BYTES

VALID_S = 30.0
"""How long a ticket admits a robot; it also bounds how far the clocks of a cluster's machines may be apart."""
SECRET_BYTES = 32
_DOMAIN = b"spec-vlm-nav ticket 1\0"
_MAC_BYTES = hashlib.sha256().digest_size
_MOST_NAME = 64


class TicketError(ValueError):
    """A ticket admits nobody; the text is the reason, in a sentence for the robot's operator."""


class Ticket(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The part of a ticket that is signed."""

    replica: Annotated[str, Meta(max_length=_MOST_NAME)]
    client: Annotated[str, Meta(max_length=_MOST_NAME)]
    """Names its key; empty without CURVE."""
    key: Annotated[str, Meta(max_length=_MOST_NAME)]
    """Places the robot, see `directory`, so that it is sent to the same replica when it comes back."""
    until: float
    """It ends then, seconds since 1970."""


class Tickets:
    """Signs and checks; `secret` is that of the cluster. Times are seconds since 1970, of the wall clock."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._decoder = msgspec.msgpack.Decoder(Ticket)

    def sign(self, replica: str, client: str, key: str, now: float) -> bytes:
        """Return a ticket for `client` at `replica`."""
        content = msgspec.msgpack.encode(Ticket(replica, client, key, now + VALID_S))
        return self._mac(content) + content

    def age(self, ticket: Ticket, now: float) -> float:
        """Return how many seconds ago a ticket was signed."""
        return now - (ticket.until - VALID_S)

    def check(self, ticket: bytes, replica: str, client: str, now: float) -> None:
        """Raise TicketError unless `client` may come to `replica` now."""
        if not ticket:
            raise TicketError(
                "this verifier takes robots from its cluster's gateway only; give the robot the gateway's address"
            )
        found = self._read(ticket)
        if found is None:
            raise TicketError("the ticket is not this cluster's; do gateway and replica have the same secret?")
        if found.client != client:
            raise TicketError("the ticket was given to another robot's key")
        if found.replica != replica:
            raise TicketError(f"the ticket is for replica {found.replica!r}, this is {replica!r}")
        if not found.until - 2.0 * VALID_S <= now <= found.until:
            raise TicketError(
                f"the ticket is valid until {found.until - now:+.1f} s from now; the clocks of gateway and replica "
                f"must agree to within {VALID_S:g} s"
            )

    def before(self, ticket: bytes, client: str) -> Ticket | None:
        """Return where `client` was placed before, by an old ticket too; None where it never was."""
        found = self._read(ticket)
        return found if found is not None and found.client == client else None

    def _read(self, ticket: bytes) -> Ticket | None:
        mac, content = ticket[:_MAC_BYTES], ticket[_MAC_BYTES:]
        if len(ticket) > MAX_TICKET_BYTES or not hmac.compare_digest(mac, self._mac(content)):
            return None
        try:
            return self._decoder.decode(content)
        except msgspec.DecodeError:  # signed by another version
            return None

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._secret, _DOMAIN + content, hashlib.sha256).digest()


def load_secret(path: Path) -> bytes:
    """Return the cluster's secret in a file, which is made where there is none yet.

    Raises ValueError for one that is too short or that others can read; OSError for one that cannot be read or made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
    except FileExistsError:
        pass
    if path.stat().st_mode & 0o077:
        raise ValueError(f"cluster secret {path} can be read by others; mend it with: chmod 600 {path}")
    secret = path.read_bytes()
    if len(secret) < SECRET_BYTES:
        raise ValueError(
            f"cluster secret {path} has {len(secret)} bytes, the least is {SECRET_BYTES}; remove it for another one"
        )
    return secret
