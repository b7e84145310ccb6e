"""The router on real sockets: bounded, fair, and never waiting for anybody."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import pytest

from cloud_verifier.frontend import router_socket as module
from cloud_verifier.frontend.connections import SESSIONLESS_BYTES
from cloud_verifier.frontend.router_socket import SESSION_MESSAGES, SESSIONLESS_MESSAGES, RouterSocket
from speculation.wire import Fault, FaultCode, Ping, encode
from tests.cloud_verifier.process import Robot
from tests.hostile import RawPeer

LOOPBACK = "tcp://127.0.0.1:*"
LIMIT_S, WAIT_S = 120.0, 0.1
T = TypeVar("T")


def found_by(router: RouterSocket, look: Callable[[], T | None]) -> T:
    """Let the router work until there is something to be found, and return it."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if found := look():
            return found
        router.wait(WAIT_S)
        router.move()
    raise AssertionError("nothing came")


def receive(router: RouterSocket) -> tuple[bytes, list[bytes]]:
    """Return the next message."""
    return found_by(router, router.receive)


@pytest.mark.parametrize(("has_session", "most"), [(False, SESSIONLESS_MESSAGES), (True, SESSION_MESSAGES)])
def test_mail_that_nobody_reads_is_bounded_and_peers_take_turns(has_session: bool, most: int) -> None:
    with (
        closing(RouterSocket(LOOPBACK)) as router,
        closing(Robot(router.address)) as flooder,
        closing(Robot(router.address)) as quiet,
    ):
        flooder.socket.send(b"first")
        peer, _ = receive(router)
        if has_session:
            router.admit(peer)
        for number in range(3 * most):
            flooder.socket.send(b"%d" % number)
        while router.dropped < 2 * most:
            router.wait(0.01)
            router.move()
        quiet.socket.send(b"me")
        seen: list[bytes] = []
        while b"me" not in seen:
            seen.append(receive(router)[1][0])
        left = []
        while (mail := router.receive()) is not None:
            left.append(mail[1][0])
        flood = [each for each in seen + left if each != b"me"]
        assert flood == [b"%d" % number for number in range(most)], "the oldest stay, in their order"
        quiet.socket.send(b"again")
        assert receive(router)[1] == [b"again"]
        assert not router.send(b"nobody", encode(Ping(1)))


def test_all_bytes_of_a_message_count_for_what_a_client_may_send(caplog: pytest.LogCaptureFixture) -> None:
    """Also those of frames that are not kept: else whoever puts its bytes there may send any number."""
    caplog.set_level(logging.WARNING)
    with (
        closing(RouterSocket(LOOPBACK, bytes_per_s=100.0)) as router,
        closing(Robot(router.address)) as robot,
    ):
        for number in range(10):
            robot.socket.send_multipart([encode(Ping(number)), b"", bytes(4000)])
        assert found_by(router, router.ended) and "more than 4 times what --bytes-per-s allows" in caplog.text


def test_nothing_blocks_on_a_peer_that_does_not_read() -> None:
    with closing(RouterSocket(LOOPBACK)) as router, closing(Robot(router.address)) as robot:
        robot.socket.rcvhwm = 1
        robot.socket.send(b"hi")
        peer, _ = receive(router)
        big = encode(Fault(FaultCode.INTERNAL, "x" * 1000))
        for _ in range(100_000):  # kernel buffers, then the pipe, then the backlog
            if not router.send(peer, big):
                break
        else:
            pytest.fail("a peer that does not read must be given up")
        assert router.send(peer, big, droppable=True)
        router.forget(peer)


def test_what_is_never_freed_ends_with_the_socket_and_robots_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty peers of one routing id leave 50 kB each behind; then the socket is another one, at the same address."""
    monkeypatch.setattr(module, "LOST_BYTES", 10 * SESSIONLESS_BYTES)
    with closing(RouterSocket(LOOPBACK)) as router, closing(Robot(router.address)) as robot:
        robot.send(Ping(1))
        before, _ = receive(router)
        router.admit(before)
        first = RawPeer(router.address, identity=b"twin")
        first.frame(encode(Ping(2)))
        receive(router)
        for _ in range(20):
            with contextlib.suppress(OSError, AssertionError):
                twin = RawPeer(router.address, identity=b"twin")
                twin.frame(bytes(50_000))
                twin.close()
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            robot.send(Ping(3))
            router.wait(WAIT_S)
            mail = router.receive()
            if mail is not None and mail[0] != before and mail[1] == [encode(Ping(3))]:
                break
        else:
            pytest.fail("the robot did not come back as another peer")
        assert not router.send(before, encode(Ping(4))) and router.send(
            mail[0], encode(Fault(FaultCode.NO_SESSION, "Hello?"))
        )
        assert isinstance(robot.receive(), Fault)
        first.close()
