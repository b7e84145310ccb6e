"""Runs the chat API in a process of its own, which takes connections that the pages' server has accepted.

So neither the JSON nor the pictures of requests take time from the engine's thread, and one port serves both. The
process ends when its socket pair does, however the verifier ends; one that ends by itself is followed by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec

from cloud_verifier.config import ServerConfig
from cloud_verifier.frontend.supervisor import start_process
from cloud_verifier.monitoring.http_server import HttpServer
from cloud_verifier.openai_api.keys import ApiKeys
from cloud_verifier.start_error import need
from speculation.address import host_of
from speculation.vlm.folder import model_name

_log = logging.getLogger("cloud_verifier")

PAUSE_S, CLOSE_S = 1.0, 3.0
"""The pause before the next process, and how long one may take to end."""


class ApiSettings(msgspec.Struct, frozen=True):
    """Tell the process of the chat API which socket pair it has, and where requests go."""

    connections: int
    """Is the file descriptor of its end of the socket pair."""
    address: str
    """Is the ZeroMQ address of the verifier, or of a cluster's gateway."""
    config: ServerConfig


@contextmanager
def chat_api_served(config: ServerConfig, address: str, pages: HttpServer | None) -> Iterator[None]:
    """Serve the chat API at the port of `pages` meanwhile, where there are API keys. Raises StartError.

    `address` is the verifier's, or the gateway's.
    """
    file = config.chat_api.api_keys
    if file is None or pages is None:
        yield
        return
    need("openai", "aiohttp")
    ApiKeys(file, config.link.keys)
    folder = config.model_folder  # here, once: later the process might find another revision on the hub
    process = ChatApiProcess(ApiSettings(-1, _reached(address), config.changed(model=folder)))
    pages.take = process.take
    _log.info("OpenAI chat API of %s at %s/v1", model_name(folder), pages.url)
    try:
        yield
    finally:
        pages.take = None
        process.close()


def _reached(address: str) -> str:
    """Return the address at which this machine reaches a verifier that is bound to it."""
    for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
        if host_of(address) == everywhere:
            return f"tcp://{here}:{address.rpartition(':')[2]}"
    return address


class ChatApiProcess:
    """The process, and another one whenever it ends."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process, self._ours = self._start()
        self._thread = threading.Thread(target=self._supervise, name="chat api", daemon=True)
        self._thread.start()

    def take(self, connection: socket.socket) -> None:
        """Hand over a connection, of which nothing was read. Raises OSError where the process takes no more."""
        with self._lock:
            socket.send_fds(self._ours, [b"\0"], [connection.fileno()])

    def close(self) -> None:
        """End the process, with the requests under way."""
        with self._lock:
            self._closing.set()
            self._ours.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join()

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        settings = msgspec.structs.replace(self._settings, connections=theirs.fileno())
        with theirs:
            return start_process("cloud_verifier.openai_api", settings, theirs.fileno()), ours

    def _supervise(self) -> None:
        while True:
            code = self._process.wait()
            if self._closing.is_set():
                return
            _log.error("the chat API's process ended with %d; starting another", code)
            if self._closing.wait(PAUSE_S):
                return
            with self._lock, contextlib.suppress(OSError):  # out of processes or descriptors: again after the pause
                if not self._closing.is_set():
                    self._ours.close()
                    self._process, self._ours = self._start()


async def accepted(descriptor: int) -> AsyncIterator[socket.socket]:
    """Yield the connections that come over a socket pair, until its other end is closed."""
    with socket.socket(fileno=descriptor) as pair:
        pair.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            ready = asyncio.Event()
            loop.add_reader(pair, ready.set)
            await ready.wait()
            loop.remove_reader(pair)
            with contextlib.suppress(BlockingIOError):
                data, descriptors, *_ = socket.recv_fds(pair, 1, 1)
                for each in descriptors:
                    yield socket.socket(fileno=each)
                if not data:
                    return
