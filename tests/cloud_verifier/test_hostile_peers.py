"""Peers that mean harm beside a robot that means none: the verifier lives, its memory stays, the robot is answered."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import pytest

from speculation import wire
from speculation.wire import (
    BeginStep,
    Draft,
    EndStep,
    Fault,
    FaultCode,
    Hello,
    Idle,
    Ping,
    Welcome,
)
from tests.cloud_verifier.process import (
    ANSWER,
    Robot,
    Target,
    Verifier,
    answer_by_drafts,
    frontends_of,
    start,
)
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.hostile import MORE, RawPeer, memory_mb, scans_jpeg

Kind = TypeVar("Kind", bound=wire.Message)
MEMORY_MB = 64.0
"""What an attack may leave behind."""
ADDRESS_LIMIT_S = 60.0
STUCK_S = 1.0
"""How long a vandal's bytes may wait for the verifier to read on, before the vandal looks what has become of it."""


class Honest(threading.Thread):
    """A robot that asks the same question again and again and compares the answers."""

    def __init__(self, address: str, served: Target) -> None:
        super().__init__(daemon=True)
        self._robot = Robot(address)
        self._target = served
        self._over = threading.Event()
        self.right = 0
        self.problems: list[str] = []
        self.answered = threading.Condition()

    def run(self) -> None:
        """Ask until `finish`."""
        try:
            self._robot.send(self._target.hello)
            assert isinstance(self._robot.receive(), Welcome)
            step = 0
            while not self._over.is_set():
                step += 1
                number = step % len(PROMPTS)
                truth = self._target.truths[number]
                answer = answer_by_drafts(self._robot, number, truth, right=step % 4, junk=2, step=step)
                with self.answered:
                    if answer != truth:
                        self.problems.append(f"step {step}: {answer}, not {truth}")
                    self.right += answer == truth
                    self.answered.notify_all()
        except AssertionError as error:
            self.problems.append(f"lost: {error}")
        finally:
            self._robot.close()

    def answers(self, more: int = 3) -> None:
        """Wait for some more answers: it is being served now."""
        with self.answered:
            wanted = self.right + more
            assert self.answered.wait_for(lambda: self.right >= wanted or self.problems, ADDRESS_LIMIT_S), "starved"
        assert not self.problems

    def finish(self) -> None:
        """Stop asking."""
        self._over.set()
        self.join()
        assert not self.problems and self.right


@pytest.fixture(scope="module")
def verifier(served: Target) -> Iterator[Verifier]:
    """One verifier for all attacks."""
    verifier = start(served.folder, "--dtype", "float64", "--max-sessions", "6", "--capacity", "192")
    yield verifier
    assert verifier.process.poll() is None, "the verifier is dead"
    assert verifier.stop() == 0
    assert all(re.match(r"20\d\d-\d\d-\d\d .* cloud_verifier: ", line) for line in verifier.log), "a line was forged"
    assert not any("\x1b" in line for line in verifier.log)
    assert not any("the frontend (" in line for line in verifier.log), "the frontend did not live through it all"


@pytest.fixture(scope="module", autouse=True)
def idle(verifier: Verifier) -> Iterator[RawPeer]:
    """A peer that has no session and sends nothing, from the first attack on: its 10 s go by meanwhile."""
    peer = RawPeer(verifier.address)
    yield peer
    peer.close()


@pytest.fixture
def honest(verifier: Verifier, served: Target) -> Iterator[Honest]:
    """The honest robot, and what must hold after every attack."""
    robot = Honest(verifier.address, served)
    robot.start()
    robot.answers()
    before = memory(verifier)
    yield robot
    robot.answers()
    robot.finish()
    assert verifier.process.poll() is None, "the verifier is dead"
    for _ in range(200):  # freed memory goes back to the system a little later
        if (grown := memory(verifier) - before) < MEMORY_MB:
            break
        time.sleep(0.1)
    assert grown < MEMORY_MB


def memory(verifier: Verifier) -> float:
    """Return the MB of a verifier's process and of its frontend's."""
    pid = verifier.process.pid
    return sum(memory_mb(each) for each in (pid, *frontends_of(pid)))


def in_session(address: str, hello: Hello) -> RawPeer:
    """Return a raw peer that has a session."""
    peer = RawPeer(address)
    peer.frame(wire.encode(hello))
    assert peer.socket.recv(1)
    return peer


def fill(peer: RawPeer, frame: int, megabytes: int = 200) -> None:
    """Send one message of ever more frames that never ends, until the other side has enough."""
    size = 0
    with contextlib.suppress(OSError):
        while size < megabytes << 20:
            times = 1 + (1 << 16) // frame
            peer.frame(b"x" * frame, MORE, times)
            size += times * frame


@pytest.mark.parametrize("with_session", [False, True])
def test_a_large_malformed_message_many_pings_and_goodbye(
    verifier: Verifier, honest: Honest, served: Target, with_session: bool
) -> None:
    """ZeroMQ's heartbeats, a full pipe and a closed connection ended the process (zeromq/libzmq issue 4364)."""
    large = b"\x92\x7f\xdd" + struct.pack(">I", 4_200_000) + b"\x90" * 4_200_000
    for _ in range(3):
        vandal = Robot(verifier.address)
        if with_session:
            vandal.send(served.hello)
            assert isinstance(vandal.receive(), Welcome)
        vandal.socket.send(large)
        for _ in range(100):
            vandal.send(Ping(1))
        if with_session:
            fault = vandal.receive()
            assert isinstance(fault, Fault) and "4200007 bytes" in fault.message
        honest.answers()
        vandal.close()


def test_heartbeats_behind_a_flood_and_goodbye(verifier: Verifier, honest: Honest) -> None:
    """A full pipe, a peer's heartbeats still in the buffer and a closed connection: as bad as heartbeats of our own."""
    for _ in range(10):
        vandal = RawPeer(verifier.address)
        with contextlib.suppress(OSError):
            for _ in range(3):
                vandal.socket.sendall(b"\x00\x01x" * 20_000 + b"\x04\x07\x04PING\x00\x00" * 300)
        vandal.close()
    honest.answers()


@pytest.mark.parametrize(("frame", "with_session"), [(1, False), (200, True), (1 << 20, True)])
def test_a_message_that_never_ends_ends_its_connection(
    verifier: Verifier, honest: Honest, served: Target, frame: int, with_session: bool
) -> None:
    vandal = in_session(verifier.address, served.hello) if with_session else RawPeer(verifier.address)
    vandal.socket.settimeout(STUCK_S)
    fill(vandal, frame)
    assert vandal.is_cut_off()
    vandal.close()


def test_a_flood_of_whole_messages_ends_its_connection_or_is_dropped(verifier: Verifier, honest: Honest) -> None:
    vandal = RawPeer(verifier.address)
    vandal.socket.settimeout(STUCK_S)
    with contextlib.suppress(OSError):
        for _ in range(200):
            vandal.socket.sendall(b"\x00\x03abc" * 20_000)
    vandal.close()


@pytest.mark.parametrize("with_session", [False, True])
def test_refusals_to_a_peer_that_never_reads_do_not_pile_up(
    verifier: Verifier, honest: Honest, served: Target, with_session: bool
) -> None:
    vandal = in_session(verifier.address, served.hello) if with_session else RawPeer(verifier.address)
    vandal.socket.settimeout(STUCK_S)
    end_step = EndStep(1, "\x1b[2J\n2026-01-01 00:00:00,000 ERROR cloud_verifier: forged")
    forged = (wire.encode(end_step), b"\x92\xa7\x1b[2J\nno\x01")
    with contextlib.suppress(OSError):
        for turn in range(20_000):
            vandal.frame(forged[turn % 2])
    honest.answers()
    vandal.close()


def test_a_slow_frame_is_refused_and_nobody_waits_for_it(verifier: Verifier, honest: Honest, served: Target) -> None:
    with contextlib.closing(Robot(verifier.address)) as vandal:
        vandal.send(served.hello)
        assert isinstance(vandal.receive(), Welcome)
        vandal.send(BeginStep(1, PROMPTS[0], scans_jpeg(2048, 400), max_tokens=ANSWER, idle=Idle.DECODE))
        fault = vandal.receive()
        assert isinstance(fault, Fault) and fault.code is FaultCode.BAD_IMAGE and fault.step == 1
        assert "scans, the limit is" in fault.message
        vandal.send(BeginStep(2, PROMPTS[0], scans_jpeg(1500, 12), max_tokens=ANSWER, idle=Idle.DECODE))
        honest.answers()


def test_a_routing_id_taken_over_brings_no_session(verifier: Verifier, honest: Honest, served: Target) -> None:
    """Whoever takes the id of a robot that is gone is asked for Hello, and the robot's resume token still works."""
    first = RawPeer(verifier.address, identity=b"rex")
    first.frame(wire.encode(served.hello))
    token = _next(first, Welcome).session
    first.frame(wire.encode(BeginStep(1, PROMPTS[0], jpeg(0), max_tokens=ANSWER)))
    first.close()
    for _ in range(30):
        thief = RawPeer(verifier.address, identity=b"rex")
        thief.frame(wire.encode(Draft(1, 1, 0, wire.begin_digest(PROMPTS[0], jpeg(0)), [1])))
        try:
            assert _next(thief, Fault, seconds=2.0).code is FaultCode.NO_SESSION
            break
        except TimeoutError:  # ZeroMQ ignores whoever comes with an id that is still in use
            continue
        finally:
            thief.close()
    else:
        pytest.fail("the thief was never received")
    with contextlib.closing(Robot(verifier.address)) as robot:
        robot.send(Hello(served.hello.tokenizer, served.hello.vocabulary, served.hello.model, resume=token))
        welcome = robot.receive()
        assert isinstance(welcome, Welcome) and welcome.session == token


def test_long_routing_ids_leave_nothing_behind(verifier: Verifier, honest: Honest) -> None:
    """Each of 200 kB, which ZeroMQ takes over the wire; 1,500 of them took 290 MB."""
    for number in range(400):
        with contextlib.suppress(OSError, AssertionError):
            vandal = RawPeer(verifier.address, identity=b"%06d" % number + b"x" * 200_000)
            vandal.frame(wire.encode(Ping(number)))
            vandal.close()


def test_many_with_one_routing_id_leave_little_behind(verifier: Verifier, honest: Honest) -> None:
    """ZeroMQ reads nothing of a peer whose id is in use, and never frees what it sent."""
    first = RawPeer(verifier.address, identity=b"twin")
    first.frame(wire.encode(Ping(1)))
    for _ in range(100):
        with contextlib.suppress(OSError, AssertionError):
            twin = RawPeer(verifier.address, identity=b"twin")
            twin.frame(b"x" * 200_000)
            twin.close()
    first.close()


def test_large_frames_at_full_speed_end_their_connection(verifier: Verifier, honest: Honest, served: Target) -> None:
    """3.9 MB, as often as the link takes them: far beyond --bytes-per-s, while the honest robot is answered."""
    vandal = in_session(verifier.address, served.hello)
    vandal.socket.settimeout(STUCK_S)
    frame = wire.encode(BeginStep(1, PROMPTS[0], bytes(3_900_000), max_tokens=ANSWER))
    with contextlib.suppress(OSError):
        for _ in range(100):
            vandal.frame(frame)
    assert vandal.is_cut_off()
    vandal.close()


def test_silent_connections_keep_no_robot_out_of_a_verifier_with_few_descriptors(served: Target) -> None:
    """320 of them, where 256 may be open: the oldest are hung up on."""
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, 256))
    verifier = start(served.folder, "--dtype", "float64", "--capacity", "192", preexec_fn=few)
    host, port = verifier.address.removeprefix("tcp://").split(":")
    silent: list[socket.socket] = []
    try:
        for _ in range(320):
            silent.append(socket.create_connection((host, int(port)), timeout=20.0))
        robot = Honest(verifier.address, served)
        robot.start()
        robot.answers(1)
        robot.finish()
        assert not any("the frontend (" in line for line in verifier.log)
    finally:
        for each in silent:
            each.close()
        verifier.stop()


def test_a_peer_without_a_session_is_not_kept(idle: RawPeer, honest: Honest) -> None:
    assert idle.is_cut_off(ADDRESS_LIMIT_S)


def test_a_peer_of_the_first_zmtp_or_a_garbled_greeting_ends_nothing(verifier: Verifier, honest: Honest) -> None:
    """A greeting that does not begin with 0xff is ZMTP 1.0's, whose messages do not name their connection."""
    host, port = verifier.address.removeprefix("tcp://").split(":")
    for routing_id in (b"", b"robot"):
        with socket.create_connection((host, int(port))) as peer:
            for body in (routing_id, b"a message of another age", b""):
                peer.sendall(bytes([len(body) + 1, 0]) + body)
            honest.answers()


def _next(peer: RawPeer, kind: type[Kind], seconds: float = ADDRESS_LIMIT_S) -> Kind:
    """Return the next message of a kind. Raises TimeoutError where nothing comes for so many seconds."""
    peer.socket.settimeout(seconds)
    while True:
        message = wire.decode(peer.message())
        if isinstance(message, kind):
            return message
