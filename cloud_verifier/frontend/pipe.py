"""Carries whole, bounded messages over the socket pair between frontend and engine, and never waits."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

_HEAD = struct.Struct(">I")
READ_BYTES = 1 << 18
"""So many are taken from the stream at once."""
MOST_BYTES = 8 << 20
"""One message may have so many: twice the largest frame that the socket lets in (`router_socket.LARGEST_FRAME`)."""

T = TypeVar("T")


class Closed(ConnectionError):
    """The other end is gone."""


class Pipe(Generic[T]):
    """Sends any message and receives those of one type. Used by one thread at a time."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        end.setblocking(False)
        self._socket = end
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(incoming)
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self.backlog = 0
        """How many bytes the stream has not taken yet."""

    def fileno(self) -> int:
        """Return the descriptor, to be polled."""
        return self._socket.fileno()

    def put(self, message: msgspec.Struct) -> None:
        """Send a message, now or with a later `flush`. Raises Closed."""
        payload = self._encoder.encode(message)
        self._out.append(memoryview(_HEAD.pack(len(payload)) + payload))
        self.backlog += _HEAD.size + len(payload)
        if len(self._out) == 1:
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the stream takes it. Raises Closed."""
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                self.backlog -= sent
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                else:
                    self._out.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            raise Closed(str(error)) from None

    def get(self) -> Iterator[T]:
        """Read once from the stream and yield the messages that are whole.

        Raises Closed where the other end is gone; ValueError for what is no message.
        """
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise Closed(str(error)) from None
        if not data:
            raise Closed("the stream has ended")
        self._in += data
        at = 0
        try:
            while len(self._in) - at >= _HEAD.size:
                (size,) = _HEAD.unpack_from(self._in, at)
                if size > MOST_BYTES:
                    raise ValueError(f"a message of {size} bytes, the limit is {MOST_BYTES}")
                if len(self._in) - at < _HEAD.size + size:
                    break
                at += _HEAD.size + size
                payload = bytes(memoryview(self._in)[at - size : at])
                yield self._decoder.decode(payload)
        finally:
            del self._in[:at]

    @property
    def in_the_middle(self) -> bool:
        """Whether the beginning of a message was read whose rest is still to come."""
        return bool(self._in)

    def close(self) -> None:
        """Close this end; safe to repeat."""
        self._socket.close()
        self._out.clear()
        self.backlog = 0
