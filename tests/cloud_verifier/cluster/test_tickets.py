"""Tickets admit one key to one replica for a while, and nothing else does."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.cluster.tickets import SECRET_BYTES, VALID_S, TicketError, Tickets, load_secret
from speculation.wire import MAX_TICKET_BYTES

SECRET = bytes(range(SECRET_BYTES))
NAMES = st.text(max_size=40)
NOW = 1_800_000_000.0


@settings(max_examples=30)
@given(NAMES, NAMES, NAMES, st.floats(0.0, VALID_S))
def test_a_ticket_admits_its_client_to_its_replica_until_it_expires_and_names_its_place(
    replica: str, client: str, key: str, later: float
) -> None:
    ticket = Tickets(SECRET).sign(replica, client, key, NOW)
    assert len(ticket) <= MAX_TICKET_BYTES
    Tickets(SECRET).check(ticket, replica, client, NOW + later)
    before = Tickets(SECRET).before(ticket, client)
    assert before is not None and (before.key, before.replica) == (key, replica)
    assert Tickets(SECRET).before(ticket, f"{client}, a thief") is None


@settings(max_examples=40)
@given(st.data())
def test_a_ticket_that_was_changed_anywhere_admits_nobody(data: st.DataObject) -> None:
    tickets = Tickets(SECRET)
    ticket = bytearray(tickets.sign("a", "client", "key", NOW))
    place = data.draw(st.integers(0, len(ticket) - 1))
    ticket[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TicketError, match="not this cluster's"):
        tickets.check(bytes(ticket), "a", "client", NOW)
    assert tickets.before(bytes(ticket), "client") is None


@settings(max_examples=40)
@given(st.binary(max_size=2 * MAX_TICKET_BYTES))
def test_anything_else_admits_nobody(ticket: bytes) -> None:
    with pytest.raises(TicketError):
        Tickets(SECRET).check(ticket, "a", "", NOW)


@pytest.mark.parametrize(
    ("replica", "client", "at", "why"),
    [
        ("b", "client", NOW, "for replica 'a', this is 'b'"),
        ("a", "another", NOW, "another robot's key"),
        ("a", "client", NOW + VALID_S + 1.0, "valid until -1.0 s from now"),
        ("a", "client", NOW - VALID_S - 1.0, "clocks of gateway and replica must agree"),
    ],
)
def test_it_holds_for_nobody_else_and_nowhere_else(replica: str, client: str, at: float, why: str) -> None:
    tickets = Tickets(SECRET)
    with pytest.raises(TicketError, match=why):
        tickets.check(tickets.sign("a", "client", "key", NOW), replica, client, at)


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "cluster.secret"
    secret = load_secret(path)
    assert len(secret) == SECRET_BYTES and load_secret(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(ValueError, match=f"chmod 600 {path}"):
        load_secret(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="has 5 bytes, the least is 32"):
        load_secret(path)
