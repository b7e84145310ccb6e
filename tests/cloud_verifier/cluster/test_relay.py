"""Robots that reach the door alone: their frames are passed on, and they are moved as all others are."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.door import ClusterDoor
from cloud_verifier.cluster.relay import Relay
from cloud_verifier.cluster.tickets import SECRET_BYTES, Tickets
from cloud_verifier.door.supervisor import Door
from cloud_verifier.mailbox import Mailbox
from cloud_verifier.security import make_keys, public_key
from edge_drafter import LinkLost
from edge_drafter.link import LinkConfig, LinkState, ZmqLink, load_keys
from speculation import wire
from speculation.wire import BeginStep, Commit, Hello, Ping, Pong, Redirect, Welcome

TICKETS = Tickets(bytes(range(SECRET_BYTES)))
ANY_PORT = "tcp://127.0.0.1:*"
LIMIT_S = 20.0
HELLO = Hello("tok", 100)
BEGIN = BeginStep(1, "find it", b"x" * 200_000)


class Replica:
    """A verifier of a few lines, on the verifier's own socket: it takes those with a ticket and commits one token."""

    def __init__(self, name: str, keys: Path | None = None) -> None:
        self.name, self.mailbox = name, Mailbox(ANY_PORT, keys)
        self.to_send: list[Redirect] = []
        self.key = public_key(keys)
        self.hellos: list[Hello] = []
        self.steps: list[BeginStep] = []
        self.peer = b""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def status(self) -> Status:
        return Status(self.name, Phase.READY, 1.0, self.mailbox.address, self.key, max_sessions=8)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self.mailbox.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            self.mailbox.wait(0.005)
            self.mailbox.move()
            while self.to_send:
                self._send(self.to_send.pop())
            while (received := self.mailbox.receive()) is not None:
                self.peer = received[0]
                message = wire.decode(received[1][0])
                if isinstance(message, Hello):
                    TICKETS.check(message.ticket, self.name, self.mailbox.client(self.peer), time.time())
                    self.hellos.append(message)
                    self.mailbox.admit(self.peer)
                    self._send(Welcome(f"of {self.name}", "model", "tok", 100, 4, [1], [9]))
                elif isinstance(message, Ping):
                    self._send(Pong(message.nonce))
                elif isinstance(message, BeginStep):
                    self.steps.append(message)
                    self._send(Commit(message.step, 0, 0, [7], b"8 bytes!", False))

    def _send(self, message: wire.AnyMessage) -> None:
        self.mailbox.send(self.peer, wire.encode(message))


class World:
    """A door that relays to two replicas, in a thread, and one robot."""

    def __init__(self, keys: Path | None, ends: ExitStack) -> None:
        self.replicas = {name: ends.enter_context(closing(Replica(name, keys))) for name in "ab"}
        self.gone: set[str] = set()
        self.directory = Directory()
        mailbox = Door(ANY_PORT, keys)
        ends.callback(mailbox.close)
        relay = Relay(mailbox, keys, time.monotonic)
        ends.callback(relay.stop)
        self.door = ClusterDoor(mailbox, self.directory, TICKETS, relay=relay)
        self._ending = threading.Event()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        ends.callback(thread.join)
        ends.callback(self._ending.set)
        own = load_keys(robot_folder(keys)) if keys is not None else None
        self.link = ZmqLink(LinkConfig(mailbox.address, HELLO, own, ping_s=0.05, silent_s=60.0, hello_s=5.0))
        ends.callback(self.link.close)

    def _run(self) -> None:
        while not self._ending.is_set():
            for name, each in self.replicas.items():
                if name in self.gone:
                    self.directory.gone(name)
                else:
                    self.directory.report(each.status, time.monotonic())
            self.door.turn(0.05)

    def serving(self) -> str:
        """Return the replica that has the robot."""
        assert self.link.wait_nominal(LIMIT_S), self.link.why
        assert self.link.welcome is not None
        return self.link.welcome.session.removeprefix("of ")


def robot_folder(keys: Path) -> Path:
    """Return what a robot gets of the keys."""
    folder = keys.parent / "robot"
    if not folder.exists():
        folder.mkdir()
        for name in ("server.key", "go2.key_secret"):
            (folder / name).write_bytes((keys / name).read_bytes())
    return folder


@pytest.fixture(params=[False, True], ids=["plain", "keys"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    keys = tmp_path / "keys" if request.param else None
    if keys is not None:
        make_keys(keys, "go2")
        make_keys(keys, "door")
    with ExitStack() as ends:
        yield World(keys, ends)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)


def test_frames_of_a_step_pass_both_ways_and_large_ones_too(world: World) -> None:
    home = world.serving()
    world.link.send(BEGIN)
    commit = world.link.receive(LIMIT_S)
    assert isinstance(commit, Commit) and commit.tokens == [7]
    assert world.replicas[home].steps == [BEGIN]
    eventually(lambda: world.link.rtt_s is not None)


def test_a_robot_that_is_sent_away_or_whose_replica_is_gone_goes_on_at_the_other_one(world: World) -> None:
    first = world.serving()
    second = "b" if first == "a" else "a"
    world.link.send(BEGIN)
    assert isinstance(world.link.receive(LIMIT_S), Commit)
    world.gone.add(first)
    with pytest.raises(LinkLost):
        world.link.receive(LIMIT_S)
    assert world.serving() == second
    world.link.send(BEGIN)
    assert isinstance(world.link.receive(LIMIT_S), Commit)
    world.gone = {second}
    eventually(lambda: world.directory.ready(time.monotonic()) != () and world.serving() == first)


def test_a_hello_in_another_encoding_is_the_doors_too(world: World) -> None:
    """A replica would take it as the door's own: it comes by the door's connection, with the door's key."""
    home = world.serving()
    plain = wire.encode(msgspec.structs.replace(HELLO, ticket=b"own"))
    hidden = plain[:1] + b"\xcc" + plain[1:]  # its tag in two bytes, where one would do
    assert wire.decode(hidden) == wire.decode(plain) and wire.kind_of(hidden) is None
    count = sum(len(each.hellos) for each in world.replicas.values())
    with world.link._changed:
        world.link._outbox.append(hidden)
    world.link._wake()
    eventually(lambda: sum(len(each.hellos) for each in world.replicas.values()) > count)
    assert all(hello.ticket != b"own" for each in world.replicas.values() for hello in each.hellos), home


def test_where_no_connection_can_be_opened_a_robot_is_to_come_again_and_the_door_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(kind: int) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    world.serving()
    relay = world.door._relay
    assert relay is not None
    with monkeypatch.context() as patched:
        patched.setattr(relay, "_context", SimpleNamespace(socket=full))
        for replica in world.replicas.values():
            if replica.peer:
                replica.to_send.append(Redirect(reason="for no reason"))
        eventually(lambda: world.link.state is LinkState.BUSY and "no more robots" in world.link.why)
    world.serving()


def test_it_comes_back_to_the_replica_that_has_its_session(world: World) -> None:
    home = world.serving()
    replica = world.replicas[home]
    for number in range(2):
        replica.to_send.append(Redirect(reason="for no reason"))
        eventually(lambda count=number + 2: sum(len(each.hellos) for each in world.replicas.values()) >= count)  # type: ignore[misc]
        assert world.serving() == home
    assert replica.hellos[-1].resume == f"of {home}"
