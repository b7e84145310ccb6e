"""The frontend as a process: mail goes through, and whatever ends it, another one stands at the same address."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cloud_verifier.frontend import supervisor
from cloud_verifier.frontend.supervisor import Frontend
from cloud_verifier.security import AUTHORIZED, make_keys, make_next_key, switch_keys
from cloud_verifier.start_error import StartError
from edge_drafter.link import LinkConfig, LinkState, ZmqLink, load_keys
from edge_drafter.verifier_route import Route
from speculation.wire import Fault, FaultCode, Hello, Ping, Pong, Redirect, Welcome, decode, encode
from tests.cloud_verifier.process import Robot
from tests.edge_drafter.test_decoder import wait_for

LOOPBACK = "tcp://127.0.0.1:*"
HELLO = Hello("tokenizer", 100)
WELCOME = Welcome("token", "model", "tokenizer", 100, 4, [], [0])
LIMIT_S = 120.0


@pytest.fixture
def frontend() -> Iterator[Frontend]:
    frontend = Frontend(LOOPBACK)
    yield frontend
    frontend.close()
    frontend.close()


def receive(frontend: Frontend, send: Callable[[], object] = lambda: None) -> tuple[bytes, list[bytes]]:
    """Return the next message; `send` is called again and again, as a robot's pings are."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if (mail := frontend.receive()) is not None:
            return mail
        send()
        frontend.wait(0.05)
    raise AssertionError("nothing came")


def test_mail_goes_both_ways_and_a_peer_that_left_is_known_to_be_gone(frontend: Frontend) -> None:
    robot = Robot(frontend.address)
    robot.send(Ping(1))
    peer, frames = receive(frontend)
    assert frames == [encode(Ping(1))] and frontend.client(peer) == ""
    assert frontend.send(peer, Pong(1)) and robot.receive() == Pong(1)
    assert not frontend.waits(peer)
    robot.send(Ping(2))
    wait_for(lambda: frontend.waits(peer))
    assert receive(frontend) == (peer, [encode(Ping(2))]) and not frontend.waits(peer)
    assert not frontend.send(b"nobody", Pong(1))
    robot.close()
    wait_for(lambda: frontend.wait(0.01) or not frontend.send(peer, Pong(2), droppable=True))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_frontend_that_ends_or_hangs_is_replaced_at_the_same_address(
    frontend: Frontend, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM and SIGINT, which reach a whole group of processes, do not end it: the last answers must leave first."""
    with closing(Robot(frontend.address)) as robot:
        robot.send(Ping(1))
        before, _ = receive(frontend)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(frontend.pid, number)
        assert frontend.send(before, Pong(1)) and robot.receive() == Pong(1)
        first, address = frontend.pid, frontend.address
        with monkeypatch.context() as patch:
            patch.setattr(supervisor, "FROZEN_S", 1.0)
            os.kill(first, how)
            wait_for(lambda: frontend.wait(0.01) or frontend.pid != first)
        peer, frames = receive(frontend, lambda: robot.send(Ping(2)))
        assert frames == [encode(Ping(2))] and peer != before
        assert frontend.restarts >= 1 and frontend.address == address
        assert not frontend.send(before, Pong(1)) and frontend.send(peer, Pong(2)) and robot.receive() == Pong(2)


def test_while_no_process_can_be_started_the_next_frontend_is_tried_with_pauses(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without them the thread that tries takes a whole core from the engine, and every line of the log."""
    pauses: list[float] = []
    wait = frontend._closing.wait

    def noted(seconds: float | None = None) -> bool:
        pauses.append(seconds or 0.0)
        return wait(seconds)

    def none_left(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    with closing(Robot(frontend.address)) as robot:
        robot.send(Ping(1))
        receive(frontend)
        monkeypatch.setattr(frontend._closing, "wait", noted)
        with monkeypatch.context() as patch:
            patch.setattr(supervisor.subprocess, "Popen", none_left)
            os.kill(frontend.pid, signal.SIGKILL)
            wait_for(lambda: len(pauses) >= 4)
        assert pauses[:4] == [0.0, 0.05, 0.1, 0.2]
        assert "no frontend can be started: [Errno 11] no process is left; trying again" in caplog.text
        assert receive(frontend, lambda: robot.send(Ping(2)))[1] == [encode(Ping(2))]


def test_an_ipc_address_works_and_what_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with closing(Frontend(f"ipc://{tmp_path / 'v'}")) as frontend, closing(Robot(frontend.address)) as robot:
        robot.send(Ping(1))
        assert receive(frontend)[1] == [encode(Ping(1))]
    with pytest.raises(StartError, match="--bind ipc:///nowhere/v: No such file"):
        Frontend("ipc:///nowhere/v")


class Serving(threading.Thread):
    """Welcomes and answers whoever comes, and keeps whose key each was and whose were taken back."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(daemon=True)
        self._frontend, self._over = frontend, threading.Event()
        self._known: set[bytes] = set()
        self.clients: list[str] = []
        self.revoked: list[str] = []

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._over.is_set():
            self._frontend.wait(0.02)
            self.revoked += self._frontend.revoked()
            while (mail := self._frontend.receive()) is not None:
                message = decode(mail[1][0])
                if isinstance(message, Hello):
                    self.clients.append(self._frontend.client(mail[0]))
                    self._frontend.admit(mail[0])
                    self._frontend.send(mail[0], WELCOME)
                    self._known.add(mail[0])
                elif isinstance(message, Ping):
                    lost = Fault(FaultCode.NO_SESSION, "no session")
                    self._frontend.send(mail[0], Pong(message.nonce) if mail[0] in self._known else lost)

    def stop(self) -> None:
        """End."""
        self._over.set()
        self.join()


def robots_folder(keys: Path, name: str, *more: str) -> Path:
    """Return a folder as a robot has it: the server's public key, its own pair, and what else it is given."""
    folder = keys.parent / f"robot-{name}-{len(more)}"
    folder.mkdir()
    for file in ("server.key", f"{name}.key_secret", *more):
        (folder / file).write_bytes((keys / file).read_bytes())
    return folder


def link_local() -> list[str]:
    """Return this machine's link-local addresses with their zones; none where there is no IPv6."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().split("\n")
    except OSError:
        return []
    found = [(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))), line.split()[5]) for line in lines if line]
    return [f"[{address}%{zone}]" for address, zone in found if address.startswith("fe80")]


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("bind", "hosts"),
    [
        ("[::1]", ["[::1]"]),
        ("[::]", ["[::1]", "127.0.0.1", "localhost", *link_local()]),
        *((host, [host]) for host in link_local()),
    ],
)
def test_robots_come_by_ipv6_too(tmp_path: Path, bind: str, hosts: list[str]) -> None:
    """`[::]` listens at both kinds of addresses. A redirect may lead to one."""
    keys = tmp_path / "keys"
    make_keys(keys, "go2-7")
    robot = load_keys(robots_folder(keys, "go2-7"))
    frontend = Frontend(f"tcp://{bind}:*", keys)
    serving = Serving(frontend)
    serving.start()
    port = frontend.address.rpartition(":")[2]
    try:
        for host in hosts:
            link = ZmqLink(LinkConfig(f"tcp://{host}:{port}", HELLO, robot))
            assert link.wait_nominal(LIMIT_S), (host, link.why)
            link.close()
            route = Route([f"tcp://{host}:{port}"], robot.server)
            route.follow(Redirect(f"tcp://{host}:{port}", robot.server.decode()), 0.0)
            assert route.is_sent
    finally:
        serving.stop()
        frontend.close()


@pytest.mark.parametrize("bind", ["tcp://no-interface:5555", "tcp://[2001:db8::1]:5555", "tcp://192.0.2.1:5555"])
def test_an_address_that_this_machine_does_not_have_is_said_to_be_none(bind: str) -> None:
    with pytest.raises(StartError, match="no interface of this machine has this name or address"):
        Frontend(bind, allow_plain=True)


def test_robots_have_names_come_and_go_and_the_servers_key_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken key file keeps nobody else out. Who was given the next server key, before or while it runs, stays served
    when it takes over; who was not is served again when it is given the new one."""
    caplog.set_level(logging.INFO)
    keys = tmp_path / "keys"
    make_keys(keys, "go2-7")
    make_next_key(keys)
    (keys / AUTHORIZED / "broken.key").write_text("no key")
    frontend = Frontend(LOOPBACK, keys)
    serving = Serving(frontend)
    serving.start()
    make_keys(keys, "go2-8")
    strangers = tmp_path / "strangers"
    make_keys(strangers, "go2-7")
    foreign = robots_folder(strangers, "go2-7")
    (foreign / "server.key").write_bytes((keys / "server.key").read_bytes())
    ready = robots_folder(keys, "go2-7", "server_next.key")

    def linked(folder: Path) -> ZmqLink:
        links.append(ZmqLink(LinkConfig(frontend.address, HELLO, load_keys(folder), silent_s=0.5, hello_s=0.2)))
        return links[-1]

    links: list[ZmqLink] = []
    known, late, stranger = map(linked, (ready, robots_folder(keys, "go2-8"), foreign))
    plain = Robot(frontend.address)
    plain.send(HELLO)
    try:
        wait_for(lambda: known.state is late.state is LinkState.NOMINAL)
        assert set(serving.clients) == {"go2-7", "go2-8"}, "without a key nobody gets in"
        wait_for(lambda: "does not accept this robot's key" in stranger.why)
        (keys / AUTHORIZED / "go2-8.key").unlink()
        wait_for(lambda: serving.revoked == ["go2-8"] and "does not accept this robot's key" in late.why)
        wait_for(lambda: known.state is LinkState.NOMINAL)
        make_keys(keys, "go2-9")
        make_keys(keys, "go2-10")
        given, other = robots_folder(keys, "go2-10"), robots_folder(keys, "go2-9")
        running, unready = linked(given), linked(other)
        wait_for(lambda: running.state is unready.state is LinkState.NOMINAL)
        (given / "server_next.key").write_bytes((keys / "server_next.key").read_bytes())
        came = len(serving.clients)
        switch_keys(keys)
        wait_for(lambda: "does not have the server key that this robot holds" in unready.why)
        wait_for(lambda: {"go2-7", "go2-10"} <= set(serving.clients[came:]))
        wait_for(lambda: known.state is running.state is LinkState.NOMINAL)
        (other / "server.key").write_bytes((keys / "server.key").read_bytes())
        wait_for(lambda: unready.state is LinkState.NOMINAL)
        assert frontend.restarts == 0
    finally:
        plain.close()
        for link in links:
            link.close()
        serving.stop()
        frontend.close()
    text = caplog.text
    assert text.count("left out the key file") == 1 and "the server's key has changed" in text
    assert "go2-8 was taken back" in text
