"""Serves the pages of `--http`: /metrics, /health, /ready, /load and /version, in threads beside the verifier's.

It answers GET alone, reads no body, changes nothing, and holds few connections for a short time. It knows no secret,
but names of robots: it listens on loopback unless told otherwise. Connections that begin with /v1 are handed over to
the chat API's process, where there is one.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
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
MOST_CHAT_REQUESTS = 256
"""So many are looked at at once where the chat API is served; it holds them no longer than it takes to hand them over.
"""
LOOK_S = 0.01
TEXT, JSON = "text/plain; charset=utf-8", "application/json"

Answer = tuple[HTTPStatus, bytes, str]
"""Status, body and content type."""
Page = Callable[[str], Answer]
"""Makes an answer from the request's `Accept` header."""
_CHAT_API = re.compile(rb"[A-Z]+ /v1[/? ]")
_HEAD_BYTES = 16
"""The first bytes of a request that tell whether it is for the chat API."""


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
def pages_served(settings: Monitoring, health: Health, chat_api: bool = False) -> Iterator[HttpServer | None]:
    """Serve the pages meanwhile, where `--http` asks for them. Raises StartError.

    chat_api: the chat API will be served here too, once the model is loaded.
    """
    if settings.http is None:
        yield None
        return
    server = HttpServer(settings.http_bind, settings.http, pages_of(health), chat_api)
    try:
        _log.info("figures at %s: /metrics, /health, /ready, /load and /version", server.url)
        yield server
    finally:
        server.close()


class HttpServer(ThreadingHTTPServer):
    """Serves `pages` by their path until `close`. Raises StartError where the address cannot be used.

    chat_api: requests of the chat API are told to come again while nobody takes them.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CHAT_REQUESTS

    def __init__(self, address: str, port: int, pages: Mapping[str, Page], chat_api: bool = False) -> None:
        address = address.strip("[]")
        self.pages, self.chat_api = pages, chat_api
        self.take: Callable[[socket.socket], None] | None = None
        """Takes the connections of the chat API, or raises OSError for one that it cannot take; None: there is no API.
        """
        self._free, self._looking = (threading.BoundedSemaphore(most) for most in (MOST_REQUESTS, MOST_CHAT_REQUESTS))
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            super().__init__((address, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StartError(f"--http {port} at --http-bind {address}: {reason}") from None
        self.port: int = self.server_address[1]
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}"
        # `close` waits for so long at most; an idle server wakes as often.
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nothing any more and free the address."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def server_bind(self) -> None:
        # HTTPServer's own looks its name up, which may wait for a name server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        free = self._free if self.take is None else self._looking
        if not free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        threading.Thread(target=self._process, args=(request, client_address, free), daemon=True).start()

    def _process(self, request: socket.socket, client_address: Any, free: threading.Semaphore) -> None:
        late = threading.Timer(REQUEST_S, _hang_up, (request,))
        late.daemon = True
        late.start()
        try:
            take = self.take
            if take is not None and _CHAT_API.match(_head(request)):
                late.cancel()  # its limits are the chat API's
                with request, contextlib.suppress(OSError):
                    take(request)
            elif free is self._free:
                self.process_request_thread(request, client_address)
            else:
                with self._free:
                    self.process_request_thread(request, client_address)
        finally:
            late.cancel()
            free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("an HTTP request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    server_version, sys_version = "spec-vlm-nav", ""

    def do_GET(self) -> None:
        if self._is_early():
            return
        page = self.server.pages.get(urlsplit(self.path).path)
        if page is None:
            text = f"no such page; there are {', '.join(self.server.pages)}\n"
            self._answer(HTTPStatus.NOT_FOUND, text.encode(), TEXT)
            return
        try:
            answer = page(self.headers.get("Accept", ""))
        except Exception:
            _log.exception("the page %s could not be made", self.path[:100])
            answer = HTTPStatus.INTERNAL_SERVER_ERROR, b"the page could not be made; see the log\n", TEXT
        self._answer(*answer)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if self._is_early():
            return
        # Clients of the chat API come here where their base URL has no /v1.
        text = "pages are read by GET; the chat API, where --api-keys serves it, has paths that begin with /v1"
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, text, "invalid_request_error")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _is_early(self) -> bool:
        """Answer a request of the chat API that came before the API, or after it; False for any other."""
        if not self.server.chat_api or not f"{urlsplit(self.path).path}/".startswith("/v1/"):
            return False
        text = "the chat API is not served now: the model is loaded, or the verifier ends (/ready says which)"
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, text, "server_error", ("Retry-After", "2"))
        return True

    def _refuse(self, status: HTTPStatus, text: str, kind: str, *headers: tuple[str, str]) -> None:
        """Answer in the chat API's form: its clients show no other text."""
        error = {"message": text, "type": kind, "param": None, "code": status.name.lower()}
        self._answer(status, msgspec.json.encode({"error": error}), JSON, *headers)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""


def _head(connection: socket.socket) -> bytes:
    """Return the first bytes of a request, which stay to be read; fewer where its client is gone."""
    head = b""
    with contextlib.suppress(OSError):
        while len(head) < _HEAD_BYTES and b"\n" not in head:
            before, head = head, connection.recv(_HEAD_BYTES, socket.MSG_PEEK)
            if not head:
                return b""
            if head == before:
                time.sleep(LOOK_S)
    return head


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)
