"""The live table of `top`: what it shows of a verifier's /load, and what of one that is not there."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from http import HTTPStatus

import pytest
from rich.console import Console

from cloud_verifier.monitoring.figures import PUBLISH_S, Phase
from cloud_verifier.monitoring.gateway_health import GatewayHealth
from cloud_verifier.monitoring.health import Load, VerifierHealth
from cloud_verifier.monitoring.http_server import HttpServer, Page, pages_of
from cloud_verifier.monitoring.top import Unreachable, fetch, show
from speculation.wire import Idle
from tests.cloud_verifier.bench import JPEG, Bench, begin, draft
from tests.cloud_verifier.fake_target import greedy
from tests.cloud_verifier.monitoring.test_gateway_health import status


def shown(*urls: str) -> str:
    console = Console(width=200, record=True, quiet=False, force_terminal=False, file=None)
    with console.capture() as capture:
        show(urls, 1.0, True, console)
    return capture.get()


def test_a_table_of_every_verifier_with_its_sessions() -> None:
    bench = Bench()
    bench.server.figures.phase = Phase.SERVING
    for peer in (b"a", b"b"):
        bench.welcome(peer)
    bench.ask(b"a", begin(max_tokens=8, trace=b"t" * 16), draft(greedy("long", JPEG, 3)))
    bench.ask(b"b", begin(max_tokens=8, idle=Idle.DECODE))
    bench.post.now += PUBLISH_S
    bench.turns(1)
    server = HttpServer("127.0.0.1", 0, pages_of(VerifierHealth(bench.server.figures, bench.post.clock, 60.0)))
    try:
        load = fetch(f"127.0.0.1:{server.port}")
        text = shown(server.url, "http://127.0.0.1:1")
    finally:
        server.close()
    assert isinstance(load, Load) and [each.state for each in load.robots] == ["drafting", "idle"]
    assert load.robots[0].trace == (b"t" * 16).hex()
    lines = [line for line in text.splitlines() if "interactive" in line]
    assert len(lines) == 2 and "drafting" in lines[0] and "100 %" in lines[0] and "idle" in lines[1]
    assert "sessions 2/2" in text and "full: all 2 sessions are taken" in text
    assert "http://127.0.0.1:1: not reached: [Errno 111] Connection refused; was it started with --http?" in text


def test_a_gateways_replicas_are_a_table() -> None:
    gateway = GatewayHealth(lambda: 0.0, 60.0)
    gateway.turn(lambda: [status("replica-1", sessions=3, late=0.5)], 9, 2)
    with closing(HttpServer("127.0.0.1", 0, pages_of(gateway))) as server:
        text = shown(server.url)
    (line,) = (line for line in text.splitlines() if "replica-1" in line)
    assert "3/4" in line and "50 %" in line and "tcp://10.0.0.5:5556" in line
    assert "sent on 9  turned away 2" in text


@pytest.mark.parametrize("body", [b"[]", b"<html>", b'{"robots": 3}', b"\xff"])
def test_what_is_no_load_is_named_so(body: bytes) -> None:
    page: Page = lambda _: (HTTPStatus.OK, body, "application/json")  # noqa: E731
    with (
        closing(HttpServer("127.0.0.1", 0, {"/load": page})) as server,
        pytest.raises(Unreachable, match="its /load is not that of a verifier"),
    ):
        fetch(server.url)


def test_an_address_that_is_none_is_a_line_beside_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\x1b[2J\r\n")

        other = threading.Thread(target=greet, daemon=True)
        other.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        text = shown("localhost:abc", address, "")
        other.join(60)
    assert "localhost:abc: no verifier's --http address, which is HOST:PORT (nonnumeric port: 'abc')" in text
    assert f"{address}: no verifier's --http address, which is HOST:PORT (SSH-2.0-OpenSSH_9.2" in text
    assert "\x1b" not in text
