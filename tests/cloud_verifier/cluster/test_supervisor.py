"""Supervisor and replica over their socket: joining, reports, drain, and the end of either."""

from __future__ import annotations

import contextlib
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from cloud_verifier.cluster.channel import MOST_LINE, Channel, ChannelClosed, ChannelFull, Charge, Drain, Join, Report
from cloud_verifier.cluster.directory import Phase, Status
from cloud_verifier.cluster.member import Member
from cloud_verifier.cluster.supervisor import Ended, Reported, Supervisor
from cloud_verifier.cluster.tickets import SECRET_BYTES, TicketError, Tickets
from cloud_verifier.config import StartError
from cloud_verifier.slo import Standing

SECRET = bytes(range(SECRET_BYTES))
STANDING = Standing(2, 0.5, 0.25, 0.125, False)


class Sleeper:
    """In place of a process: it runs until it is ended."""

    pid = 1

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = -15

    def kill(self) -> None:
        self.code = -9

    def wait(self, timeout: float | None = None) -> int:
        assert self.code is not None
        return self.code


@pytest.fixture
def commands() -> list[Sequence[str]]:
    return []


@pytest.fixture
def supervisor(commands: list[Sequence[str]]) -> Iterator[Supervisor]:
    def start(command: Sequence[str], environment: Mapping[str, str]) -> Sleeper:
        commands.append(command)
        return Sleeper()

    supervisor = Supervisor(SECRET, "10.0.0.1", start)
    yield supervisor
    supervisor.close(0.0)
    supervisor.close(0.0)


def statuses(supervisor: Supervisor, count: int) -> list[Status]:
    found = []
    while len(found) < count:
        event = supervisor.events.get(timeout=20.0)
        assert isinstance(event, Reported)
        found.append(event.status)
    return found


def test_a_replica_joins_reports_and_checks_tickets(supervisor: Supervisor, commands: list[Sequence[str]]) -> None:
    supervisor.start("replica-1", ["command"])
    assert commands == [["command", "--name", "replica-1", "--supervisor", str(supervisor.path)]]
    member = Member("replica-1", supervisor.path, 8)
    member.serves_at("tcp://0.0.0.0:1234", lambda: "public")
    member.report(STANDING)
    joining, ready = statuses(supervisor, 2)
    assert (joining.phase, joining.address) == (Phase.JOINING, "")
    assert ready == Status(
        "replica-1", Phase.READY, joining.born, "tcp://10.0.0.1:1234", "public", 2, 8, 0.5, 0.25, 0.125
    )  # fmt: skip
    member.check_ticket(Tickets(SECRET).sign("replica-1", "robot", "key", time.time()), "robot")
    with pytest.raises(TicketError):
        member.check_ticket(Tickets(SECRET).sign("replica-2", "robot", "key", time.time()), "robot")
    member.close()
    assert supervisor.events.get(timeout=20.0) == Ended("replica-1", None)


def test_it_drains_when_it_is_to_and_when_its_supervisor_is_gone(supervisor: Supervisor) -> None:
    shed: list[int] = []
    members: list[Member] = []  # one that nobody holds any more would leave
    for name, end in (("replica-1", supervisor.drain), ("replica-2", lambda _: supervisor.close(0.0))):
        drained = threading.Event()
        supervisor.start(name, ["command"])
        members.append(Member(name, supervisor.path, 8))
        members[-1].follow(drained.set, shed.append)
        statuses(supervisor, 1)
        supervisor.shed(name, 3)
        end(name)
        assert drained.wait(20.0)
    assert shed == [3, 3]
    members[-1].report(STANDING)  # nobody reads it, and that is no failure


def test_one_that_has_not_joined_is_ended_in_place_of_drained(supervisor: Supervisor) -> None:
    supervisor.start("replica-1", ["command"])
    supervisor.drain("replica-1")
    supervisor.drain("replica-7")
    supervisor.reap()
    assert supervisor.events.get(timeout=20.0) == Ended("replica-1", -15) and not supervisor.running


def test_a_stranger_is_not_taken_in(supervisor: Supervisor) -> None:
    supervisor.start("replica-1", ["command"])
    for send in (Join("replica-2"), Drain()):
        channel: Channel[Charge | Drain] = Channel.connect(supervisor.path, Charge | Drain)
        channel.send(send)
        with pytest.raises(ChannelClosed):
            channel.receive()
    with pytest.raises(StartError, match="--supervisor .*: the other end is gone"):
        Member("replica-2", supervisor.path, 8)
    first = Member("replica-1", supervisor.path, 8)
    statuses(supervisor, 1)
    with pytest.raises(StartError):
        Member("replica-1", supervisor.path, 8)
    first.close()


@pytest.mark.parametrize("line", [b"junk\n", b"x" * (MOST_LINE + 1), b'{"type":"Join"}\n'])
def test_what_is_no_line_ends_its_connection(supervisor: Supervisor, line: bytes) -> None:
    channel: Channel[Charge] = Channel.connect(supervisor.path, Charge)
    channel._socket.sendall(line)
    with pytest.raises(ChannelClosed):
        channel.receive()


def test_who_sends_does_not_wait_for_one_that_is_frozen() -> None:
    """A replica reports in the thread that serves its robots."""
    ours, theirs = (Channel(each, Report) for each in socket.socketpair())
    sent: list[float] = []

    def report() -> None:
        with contextlib.suppress(ChannelFull):
            while True:
                ours.send(Report(Status("replica-1", Phase.READY, float(len(sent)))))
                sent.append(float(len(sent)))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive(), "it waits for the other end"
    assert [theirs.receive().status.born for _ in sent] == sent  # what was sent is whole
    ours.send(Report(Status("replica-1", Phase.READY, -1.0)))
    assert theirs.receive().status.born == -1.0
    ours.close()
    theirs.close()


def test_replicas_can_join_again_after_a_connection_could_not_be_taken_in(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud_verifier.cluster.supervisor.LOOK_AGAIN_S", 0.01)
    accept, failures = socket.socket.accept, iter([OSError(24, "Too many open files")] * 2)

    def fail(listener: socket.socket) -> tuple[socket.socket, object]:
        for error in failures:
            raise error
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail)
    for name in ("replica-1", "replica-2"):  # the first is taken in by the accept that waits already
        supervisor.start(name, ["command"])
        Member(name, supervisor.path, 8).close()


def test_its_socket_is_for_its_owner_alone_and_goes_with_it(supervisor: Supervisor) -> None:
    assert stat.S_IMODE(supervisor.path.parent.stat().st_mode) == 0o700
    supervisor.close(0.0)
    assert not supervisor.path.parent.exists()
    with pytest.raises(StartError, match="nobody supervises replicas at"):
        Member("replica-1", supervisor.path, 8)


def test_a_real_process_that_ends_is_noticed(commands: list[Sequence[str]], tmp_path: Path) -> None:
    supervisor = Supervisor(SECRET, "127.0.0.1")
    try:
        supervisor.start("replica-1", [sys.executable, "-c", "raise SystemExit(3)"])
        assert supervisor.running["replica-1"] > 1
        wait_until(lambda: supervisor.reap() or not supervisor.events.empty())
        assert supervisor.events.get() == Ended("replica-1", 3)
    finally:
        supervisor.close(0.0)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
