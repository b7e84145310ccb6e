"""Counts, by the kernel, what one TCP connection has received and not yet delivered as whole messages.

ZeroMQ bounds the size of a frame, but neither how many frames a message has nor how many messages wait for a reader:
what a peer never completes is kept for ever. The kernel's count of received bytes (TCP_INFO, Linux 4.2 and newer) shows
it from outside. Where it is not to be had, as on `ipc://`, nothing is counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct

_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received, 64 bits, in struct tcp_info."""
_INFO_BYTES = _RECEIVED_AT + 8
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_LIBC = ctypes.PyDLL(None)
"""Lets no other Python thread run meanwhile: the calls are short, and getting the interpreter back may not be."""


def received_bytes(fd: int) -> int | None:
    """Return the bytes that the TCP connection with this descriptor has received; None where that is not known."""
    if _TCP_INFO is None:
        return None
    # The C library's call, because the descriptor is ZeroMQ's: a Python socket around it would close it one day.
    info, size = ctypes.create_string_buffer(_INFO_BYTES), ctypes.c_uint32(_INFO_BYTES)
    failed = _LIBC.getsockopt(fd, socket.IPPROTO_TCP, _TCP_INFO, info, ctypes.byref(size))
    return None if failed or size.value < _INFO_BYTES else int(struct.unpack_from("=Q", info, _RECEIVED_AT)[0])


def hang_up(fd: int, port: int | None = None) -> None:
    """End a connection; whoever owns the descriptor finds it closed by the peer and frees what it kept.

    `port` is the connection's port at either end, where it is known: a descriptor that was given to another connection
    meanwhile is left alone.
    """
    with contextlib.suppress(OSError, ValueError):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd)
        try:
            if port is None or port in (sock.getsockname()[1:2] + sock.getpeername()[1:2]):
                sock.shutdown(socket.SHUT_RDWR)
        finally:
            sock.detach()


def give_back_memory() -> None:
    """Let the C library return freed memory to the system, where it can (glibc).

    Many small allocations of an attack leave its heap full of holes, which it would keep.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Undelivered:
    """Bytes of one connection that were received and are not part of a delivered message.

    A connection is a stream: when a message was delivered and nothing whole is left to deliver, all bytes before were
    delivered too. The count begins anew there, so that it neither drifts nor needs the size of frame headers.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._base = 0
        self._delivered = 0

    def deliver(self, size: int) -> None:
        """A whole message of `size` bytes was delivered."""
        self._delivered += max(1, size)

    def drained(self) -> None:
        """Nothing whole is left to deliver."""
        if self._delivered:
            self._base = received_bytes(self.fd) or 0
            self._delivered = 0

    def size(self) -> int:
        """Return the number of bytes."""
        received = received_bytes(self.fd)
        return 0 if received is None else max(0, received - self._base - self._delivered)
