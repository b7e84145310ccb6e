"""Serves the pages of `--http`: /metrics, /health, /ready, /load and /version, in threads beside the verifier's.

It answers GET alone, reads no body, changes nothing, and holds few connections for a short time. It knows no secret,
but names of robots: it listens on loopback unless told otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

import msgspec
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder

from cloud_verifier.config import Monitoring, StartError
from cloud_verifier.monitoring.health import Health

_log = logging.getLogger("cloud_verifier")
MOST_REQUESTS = 16
"""So many are served at once; more are closed unanswered."""
REQUEST_S = 5.0
"""A request that takes longer, however slowly its client sends or reads, is ended."""
TEXT, JSON = "text/plain; charset=utf-8", "application/json"

Answer = tuple[HTTPStatus, bytes, str]
"""Status, body and content type."""
Page = Callable[[str], Answer]
"""Makes an answer from the request's `Accept` header."""


def pages_of(health: Health) -> dict[str, Page]:
    """Return the pages by their path; `/metrics` has those of this process as well (memory, descriptors, CPU time)."""
    registry = health.store.registry
    ProcessCollector(registry=registry)

    def metrics(accept: str) -> Answer:
        encoder, content_type = choose_encoder(accept)
        return HTTPStatus.OK, encoder(registry), content_type

    return {
        "/metrics": metrics,
        "/health": _probe(health.health_problem),
        "/ready": _probe(health.ready_problem),
        "/load": _json(health.load),
        "/version": _json(lambda: health.about),
        **{path: _json(value) for path, value in health.more_pages.items()},
    }


def _probe(problem: Callable[[], str]) -> Page:
    """Return a page that is 200 `ok` where there is no problem, else 503 with a sentence."""

    def page(_: str) -> Answer:
        found = problem()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return status, f"{found or 'ok'}\n".encode(), TEXT

    return page


def _json(value: Callable[[], Any]) -> Page:
    return lambda _: (HTTPStatus.OK, msgspec.json.format(msgspec.json.encode(value()), indent=1) + b"\n", JSON)


@contextmanager
def pages_served(settings: Monitoring, health: Health) -> Iterator[None]:
    """Serve the pages meanwhile, where `--http` asks for them. Raises StartError."""
    if settings.http is None:
        yield
        return
    server = HttpServer(settings.http_bind, settings.http, pages_of(health))
    try:
        _log.info("figures at %s: /metrics, /health, /ready, /load and /version", server.url)
        yield
    finally:
        server.close()


class HttpServer:
    """Serves `pages` by their path until `close`. Raises StartError where the address cannot be used."""

    def __init__(self, address: str, port: int, pages: Mapping[str, Page]) -> None:
        address = address.strip("[]")
        try:
            self._server = _Server((address, port), _handler(pages))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StartError(f"--http {port} at --http-bind {address}: {reason}") from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}"
        # `close` waits for so long at most; an idle server wakes as often.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nothing any more and free the address."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_REQUESTS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer's own looks its name up, which may wait for a name server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(REQUEST_S, _hang_up, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("an HTTP request failed", exc_info=True)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


def _handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "spec-vlm-nav", ""

        def do_GET(self) -> None:
            page = pages.get(urlsplit(self.path).path)
            if page is None:
                self._answer(HTTPStatus.NOT_FOUND, f"no such page; there are {', '.join(pages)}\n".encode(), TEXT)
                return
            try:
                answer = page(self.headers.get("Accept", ""))
            except Exception:
                _log.exception("the page %s could not be made", self.path[:100])
                answer = HTTPStatus.INTERNAL_SERVER_ERROR, b"the page could not be made; see the log\n", TEXT
            self._answer(*answer)

        do_HEAD = do_GET

        def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler
