"""The pages of --http: what they answer, and that no client can hold them or the verifier."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloud_verifier.config import Monitoring, StartError
from cloud_verifier.monitoring import http_server
from cloud_verifier.monitoring.figures import PUBLISH_S, Figures, Phase
from cloud_verifier.monitoring.gateway_health import GatewayHealth
from cloud_verifier.monitoring.health import VerifierHealth
from cloud_verifier.monitoring.http_server import Answer, HttpServer, pages_of, pages_served
from cloud_verifier.monitoring.series import CATALOGUE, PREFIX
from speculation.wire import Idle
from tests.cloud_verifier.bench import Bench, begin
from tests.cloud_verifier.monitoring.conftest import Clock


@pytest.fixture
def figures(clock: Clock) -> Figures:
    return Figures(clock)


@pytest.fixture
def server(figures: Figures, clock: Clock) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, pages_of(VerifierHealth(figures, clock, 5.0)))
    yield server
    server.close()


def ok(_: str) -> Answer:
    return HTTPStatus.OK, b"ok\n", "text/plain"


def get(server: HttpServer, path: str, accept: str = "") -> tuple[int, str, str]:
    """Return status, body and content type."""
    try:
        with urlopen(Request(server.url + path, headers={"Accept": accept}), timeout=60) as reply:
            return reply.status, reply.read().decode(), reply.headers["Content-Type"]
    except HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers["Content-Type"]


def test_health_and_ready_answer_a_probe_by_status_and_a_person_by_a_sentence(
    server: HttpServer, figures: Figures, clock: Clock
) -> None:
    assert get(server, "/health")[:2] == (HTTPStatus.OK, "ok\n")
    assert get(server, "/ready")[:2] == (HTTPStatus.SERVICE_UNAVAILABLE, "loading\n")
    figures.phase = Phase.SERVING
    assert get(server, "/ready")[0] == HTTPStatus.OK
    clock.now += 60.0
    status, body, _ = get(server, "/health")
    assert status == HTTPStatus.SERVICE_UNAVAILABLE and "the engine gave no sign for 60 s" in body
    assert get(server, "/ready")[0] == HTTPStatus.SERVICE_UNAVAILABLE


def test_unknown_pages_name_the_known_ones_and_nothing_is_written_to(server: HttpServer) -> None:
    status, body, _ = get(server, "/")
    assert status == HTTPStatus.NOT_FOUND and "/metrics, /health, /ready, /load, /version" in body
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        with pytest.raises(HTTPError, match="405") as written:
            urlopen(Request(server.url + "/chat/completions", data=b"x", method=method), timeout=60)
        assert "begin with /v1" in json.loads(written.value.read())["error"]["message"]


def test_metrics_hold_every_series_of_the_catalogue_and_only_numbers_of_the_server() -> None:
    bench = Bench().with_robots(b"a")
    bench.ask(b"a", begin(max_tokens=8, idle=Idle.DECODE))
    bench.post.now += PUBLISH_S
    bench.turns(1)
    health = VerifierHealth(bench.server.figures, bench.post.clock, 60.0)
    health.describe(model='tiny "7B"', fingerprint="f" * 16)
    (_, body, kind) = pages_of(health)["/metrics"]("")
    assert kind.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    ours = {series.name: families[PREFIX + series.name] for series in CATALOGUE}
    assert all(ours[each.name].type == each.kind.__name__.lower() for each in CATALOGUE)
    assert set(families) - {PREFIX + each.name for each in CATALOGUE} <= {
        f"process_{name}" for name in ("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds",
                                       "cpu_seconds", "open_fds", "max_fds")
    }  # fmt: skip
    found = {(sample.name, *sample.labels.values()): sample.value for each in ours.values() for sample in each.samples}
    assert found[f"{PREFIX}generation_tokens_total", "interactive"] == 8
    assert found[f"{PREFIX}e2e_request_latency_seconds_count",] == 1
    assert found[f"{PREFIX}inter_token_latency_seconds_bucket", "interactive", "+Inf"] == 8
    assert ours["info"].samples[0].labels["model"] == 'tiny "7B"'
    for series in CATALOGUE:
        assert all(sample.labels.keys() <= {*series.labels, "le"} for sample in ours[series.name].samples)


def test_a_page_that_fails_answers_500_and_the_next_request_is_served(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: str) -> Answer:
        raise RuntimeError("no such figure")

    with closing(HttpServer("127.0.0.1", 0, {"/broken": broken, "/ok": ok})) as server:
        assert get(server, "/broken")[0] == HTTPStatus.INTERNAL_SERVER_ERROR and "no such figure" in caplog.text
        assert get(server, "/ok")[0] == HTTPStatus.OK


def test_slow_clients_take_a_bounded_number_of_places_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_REQUESTS", 2)
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    server = HttpServer("127.0.0.1", 0, {"/ok": ok})
    slow = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(3)]
    try:
        with pytest.raises(OSError):  # one that goes on sending, a byte at a time
            while True:
                slow[0].sendall(b"G")
                time.sleep(0.01)
        assert [each.recv(1) for each in slow[1:]] == [b""] * 2, "one was silent, and one had no place"
        assert get(server, "/ok")[0] == HTTPStatus.OK
    finally:
        for each in slow:
            each.close()
        server.close()


def test_pages_are_served_meanwhile_and_only_where_they_are_asked_for(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    caplog.set_level(logging.INFO, "cloud_verifier")
    health = GatewayHealth(clock, 60.0)
    with pages_served(Monitoring(), health):
        assert not caplog.text
    with pages_served(Monitoring(http=0), health):
        url = caplog.messages[-1].split()[2].removesuffix(":")
        with urlopen(f"{url}/health", timeout=60) as answer:
            assert answer.status == HTTPStatus.OK
    with pytest.raises(URLError):
        urlopen(f"{url}/health", timeout=60)


def test_a_port_that_is_taken_is_refused_by_its_flag(server: HttpServer) -> None:
    with pytest.raises(StartError, match=rf"--http {server.port} at --http-bind 127.0.0.1: Address already in use"):
        HttpServer("127.0.0.1", server.port, {})
    with pytest.raises(StartError, match="--http-bind nowhere.invalid"):
        HttpServer("nowhere.invalid", 0, {})


def test_connections_of_the_chat_api_are_handed_over_unread_and_others_are_pages() -> None:
    taken: list[bytes] = []

    def take(connection: socket.socket) -> None:
        taken.append(connection.recv(100))
        connection.sendall(b"HTTP/1.0 204 No Content\r\n\r\n")

    with closing(HttpServer("127.0.0.1", 0, {"/ok": ok})) as server:
        server.take = take
        assert get(server, "/ok")[0] == HTTPStatus.OK and get(server, "/v10")[0] == HTTPStatus.NOT_FOUND
        for parts in ([b"GET /v1/models HTTP/1.1\r\n"], [b"PO", b"ST /v1/", b"chat/completions HTTP/1.1\r\n"]):
            with socket.create_connection(("127.0.0.1", server.port), 60) as client:
                for part in parts:
                    client.sendall(part)
                    time.sleep(0.02)
                assert client.recv(100).startswith(b"HTTP/1.0 204")
        assert len(taken) == 2 and taken[0] == b"GET /v1/models HTTP/1.1\r\n" and taken[1].startswith(b"POST /v1/")
        server.take = None
        assert get(server, "/v1/models")[0] == HTTPStatus.NOT_FOUND


def test_who_asks_the_chat_api_while_the_model_loads_is_told_to_come_again() -> None:
    with closing(HttpServer("127.0.0.1", 0, {"/ok": ok}, chat_api=True)) as server:
        for path, data in (("/v1/models", None), ("/v1/chat/completions", b"{}")):
            with pytest.raises(HTTPError) as refused:
                urlopen(Request(f"{server.url}{path}", data), timeout=60)
            assert refused.value.code == HTTPStatus.SERVICE_UNAVAILABLE and refused.value.headers["Retry-After"] == "2"
            assert "the model is loaded" in json.loads(refused.value.read())["error"]["message"]
        assert get(server, "/ok")[0] == HTTPStatus.OK and get(server, "/v10")[0] == HTTPStatus.NOT_FOUND
