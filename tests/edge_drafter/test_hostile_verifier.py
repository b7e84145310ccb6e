"""A verifier that means harm: the link of a robot lives, its memory stays, and what is meant for it still arrives."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculation.wire import (
    BeginStep,
    Commit,
    EarlyTokens,
    Fault,
    FaultCode,
    Hello,
    Ping,
    Pong,
    Welcome,
    decode,
    encode,
)
from tests.hostile import MORE, RawPeer, RawVerifier, memory_mb

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MB = 64.0
ROBOT = """
import sys, time
from edge_drafter.link import LinkConfig, ZmqLink
from edge_drafter import LinkLost
from speculation.wire import BeginStep, Hello, EarlyTokens
link = ZmqLink(LinkConfig(sys.argv[1], Hello("tok", 100), ping_s=0.05, silent_s=30.0))
assert link.wait_nominal(60.0), link.why
link.send(BeginStep(1, "find it", b"jpeg"))
for line in sys.stdin:
    print("ready", flush=True)
    taken = set()
    until = time.monotonic() + 60.0
    while len(taken) < int(line) and time.monotonic() < until:
        try:
            message = link.receive(0.2)
        except LinkLost:
            link.wait_nominal(1.0)
            continue
        if isinstance(message, EarlyTokens):
            taken.add(message.token)
    print(len(taken), flush=True)
"""


class Edge:
    """A process with nothing but a link in it, on a connection to a raw verifier."""

    def __init__(self) -> None:
        self.verifier = RawVerifier()
        paths = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'ros_ws/src/spec_vlm_nav')]!r}\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", paths + ROBOT, self.verifier.address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.peer = self.verifier.accept()
        self._answer(Hello)
        self._answer(BeginStep)
        self.before = memory_mb(self.process.pid)

    def _answer(self, last: type[Hello] | type[BeginStep]) -> None:
        """Be a good verifier until a message of this kind came."""
        while True:
            message = decode(self.peer.message())
            if isinstance(message, Hello):
                self.peer.frame(encode(Welcome("session", "model", "tok", 100, 4, [1, 2], [9])))
            elif isinstance(message, Ping):
                self.peer.frame(encode(Pong(message.nonce)))
            if isinstance(message, last):
                return

    def expect(self, count: int) -> None:
        """Begin to receive: so many tokens are coming."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"

    def received(self) -> int:
        """Return how many tokens came."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def again(self) -> RawPeer:
        """Take the connection that the robot makes when the last one was ended."""
        self.peer = self.verifier.accept()
        self.peer.frame(encode(Fault(FaultCode.NO_SESSION, "a connection that is not known has no session")))
        self._answer(Hello)
        return self.peer

    def close(self) -> None:
        """End both."""
        self.process.kill()
        self.process.communicate()
        self.verifier.close()


@pytest.fixture
def edge() -> Iterator[Edge]:
    """The edge, and what must hold after every attack."""
    edge = Edge()
    try:
        yield edge
        assert edge.process.poll() is None, "the link is dead"
        assert memory_mb(edge.process.pid) - edge.before < MEMORY_MB
    finally:
        edge.close()


def test_garbage_between_tokens_costs_no_token(edge: Edge) -> None:
    """Commits that are none, up to 1 MB each, faults that forge log lines, and tokens in between."""
    good = [encode(EarlyTokens(1, 1, 0, 0, token, 2, 0.5)) for token in range(50)]
    commit = encode(Commit(1, 1, 0, [5], b"8 bytes!", False))
    edge.expect(len(good))
    for turn, token in enumerate(good):
        edge.peer.frame(commit[:-1] + b"\xdd\x00\x40\x00\x00" + b"\x90" * (1_000_000 if turn % 10 == 0 else 1000))
        edge.peer.frame(b"\x92\x7f\x01", times=100)
        edge.peer.frame(encode(Fault(FaultCode.INTERNAL, "\x1b[2J\n2026 forged", 7)))
        edge.peer.frame(token)
    assert edge.received() == len(good)


def test_a_flood_is_held_back_dropped_or_ends_its_connection(edge: Edge) -> None:
    edge.peer.socket.settimeout(1.0)
    with contextlib.suppress(OSError):
        for _ in range(300):
            edge.peer.frame(encode(Commit(1, 1, 0, [5] * 60, b"8 bytes!", False)), times=1000)
    edge.peer.close()
    edge.again()


def test_a_message_that_never_ends_ends_its_connection(edge: Edge) -> None:
    frame = 200
    edge.peer.socket.settimeout(3.0)
    with contextlib.suppress(OSError):
        for _ in range(max(1, (200 << 20) // max(frame, 1 << 16))):
            edge.peer.frame(b"x" * frame, MORE, 1 + (1 << 16) // frame)
    assert edge.peer.is_cut_off(60.0)
    edge.peer.close()
    edge.again()
