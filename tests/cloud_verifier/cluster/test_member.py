"""A replica's member: it checks tickets, hands on how its server stands, and drains and sheds when it is to."""

from __future__ import annotations

import pytest

from cloud_verifier.cluster.directory import Phase, Status
from cloud_verifier.cluster.member import Member
from cloud_verifier.cluster.tickets import SECRET_BYTES
from cloud_verifier.config import StartError
from cloud_verifier.slo import Standing

SECRET = bytes(range(SECRET_BYTES))
STANDING = Standing(2, 0.5, 0.25, 0.125, False)


@pytest.fixture
def member() -> Member:
    return Member("replica-1", "10.0.0.1", SECRET, 8)


def test_it_is_joining_until_its_server_reports(member: Member) -> None:
    joining = member.next_status()
    assert joining is not None and (joining.phase, joining.address) == (Phase.JOINING, "")
    member.serves_at("tcp://0.0.0.0:1234", lambda: "public", lambda: None, lambda robots: None)
    member.report(STANDING)
    assert member.next_status() == Status(
        "replica-1", Phase.READY, joining.born, "tcp://10.0.0.1:1234", "public", 2, 8, 0.5, 0.25, 0.125
    )  # fmt: skip
    member.report(Standing(1, 1.5, 0.25, 0.125, True))
    draining = member.next_status()
    assert draining is not None and (draining.phase, draining.memory) == (Phase.DRAINING, 1.0)


@pytest.mark.parametrize(
    ("bound", "reached"),
    [
        ("tcp://127.0.0.1:7", "tcp://127.0.0.1:7"),
        ("tcp://10.0.0.5:7", "tcp://10.0.0.5:7"),
        ("tcp://[::]:7", "tcp://10.0.0.1:7"),
    ],
)
def test_robots_are_sent_to_an_address_that_they_can_reach(member: Member, bound: str, reached: str) -> None:
    member.serves_at(bound, str, lambda: None, lambda robots: None)
    member.report(STANDING)
    status = member.next_status()
    assert status is not None and status.address == reached


def test_a_server_that_hangs_is_silent(member: Member) -> None:
    member.report(STANDING)
    assert member.next_status() is not None
    assert member.next_status() is None


def test_a_key_that_is_being_replaced_stays_until_the_new_one_can_be_read(member: Member) -> None:
    keys = ["old", "unread", "new"]

    def read() -> str:
        if (key := keys.pop(0)) == "unread":
            raise StartError("there is no key")
        return key

    member.serves_at("tcp://0.0.0.0:1234", read, lambda: None, lambda robots: None)
    found = []
    for _ in range(2):
        member._key_read_at -= 60.0
        member.report(STANDING)
        status = member.next_status()
        found.append(status.server_key if status is not None else None)
    assert found == ["old", "new"]


def test_it_drains_and_sheds_once_there_is_a_server(member: Member) -> None:
    calls: list[object] = []
    assert not member.drain()
    member.shed(3)
    member.serves_at("tcp://0.0.0.0:1234", str, lambda: calls.append("drain"), calls.append)
    member.shed(3)
    assert member.drain() and calls == [3, "drain"]
