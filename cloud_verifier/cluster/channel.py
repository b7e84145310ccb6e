"""The local socket between a replica and its supervisor: lines of JSON, checked, bounded; who sends never waits.

It is a Unix socket in a folder that only its owner can enter, so that it needs neither port nor key. Whoever's other
end closes it is gone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from cloud_verifier.cluster.directory import Status

MOST_LINE = 64 << 10
Received = TypeVar("Received", bound=msgspec.Struct)


class Join(msgspec.Struct, frozen=True, tag=True):
    """Replica to supervisor, once: this is the process of that replica."""

    name: str


class Charge(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to replica, in answer: what it needs to know."""

    secret: bytes
    host: str
    """By which robots reach this machine."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to replica: send your robots elsewhere and end."""


class Shed(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to replica: send so many robots elsewhere, which others have room for."""

    robots: Annotated[int, Meta(ge=1)]


class Report(msgspec.Struct, frozen=True, tag=True):
    """Replica to supervisor, four times a second."""

    status: Status


class ChannelClosed(ConnectionError):
    """The other end is gone, or sends what is no line of this channel."""


class ChannelFull(ChannelClosed):
    """The other end has read nothing for long: it is frozen."""


class Channel(Generic[Received]):
    """One end. `receive` is for one thread, `send` for any."""

    def __init__(self, connection: socket.socket, kind: object) -> None:
        """kind: the type of what is received, as msgspec takes it."""
        self._socket = connection
        self._decoder: msgspec.json.Decoder[Received] = msgspec.json.Decoder(kind)
        self._sending = threading.Lock()
        self._socket.settimeout(None)
        self._lines = connection.makefile("rb")

    @classmethod
    def connect(cls, path: Path, kind: object) -> Channel[Received]:
        """Open a channel to who listens at `path`. Raises ChannelClosed where nobody does."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise ChannelClosed(f"nobody supervises replicas at {path}: {error.strerror or error}") from None
        return cls(connection, kind)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Raises ChannelClosed; ChannelFull where the other end reads nothing, and it is not sent.

        A replica must serve its robots although its supervisor is frozen, and the other way round.
        """
        line = msgspec.json.encode(message) + b"\n"
        try:
            with self._sending:
                sent = self._socket.send(line, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise ChannelFull("the other end reads nothing") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from None
        if sent < len(line):  # Linux takes so short a line whole or not at all
            self.close()
            raise ChannelClosed(f"{sent} of {len(line)} bytes were taken")

    def receive(self) -> Received:
        """Wait for the next message. Raises ChannelClosed."""
        try:
            line = self._lines.readline(MOST_LINE)
        except (OSError, ValueError) as error:
            raise ChannelClosed(str(error)) from None
        if not line.endswith(b"\n"):
            raise ChannelClosed("the other end is gone")
        try:
            return self._decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ChannelClosed(f"no line of this channel: {error}") from None

    def close(self) -> None:
        """End the connection, which ends a `receive` too; safe to repeat."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
