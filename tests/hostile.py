"""Peers that mean harm: raw ZMTP without ZeroMQ's manners, bent messages, and what they cost a process."""

from __future__ import annotations

import contextlib
import io
import random
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

MORE, LONG, COMMAND = 1, 2, 4


class RawPeer:
    """A ZMTP 3.0 peer with mechanism NULL, frame by frame, so that it may send what no library would."""

    def __init__(self, address: str, identity: bytes = b"", kind: bytes = b"DEALER") -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._shake_hands(socket.create_connection((host, int(port)), timeout=20.0), identity, kind)

    @classmethod
    def over(cls, connection: socket.socket, kind: bytes) -> RawPeer:
        """Return the peer of a connection that stands."""
        peer = cls.__new__(cls)
        peer._shake_hands(connection, b"", kind)
        return peer

    def _shake_hands(self, connection: socket.socket, identity: bytes, kind: bytes) -> None:
        self.socket = connection
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        ready = b"\x05READY" + _property(b"Socket-Type", kind) + (_property(b"Identity", identity) if identity else b"")
        self.frame(ready, COMMAND)
        greeting = 64
        answer = self.read(greeting + 2)
        self.read(answer[greeting + 1])  # its READY: nothing may be sent before

    def frame(self, body: bytes, flags: int = 0, times: int = 1) -> None:
        """Send a frame so many times. Raises OSError where the other side has ended the connection."""
        long = len(body) > 255
        head = bytes((flags | LONG,)) + struct.pack(">Q", len(body)) if long else bytes((flags, len(body)))
        self.socket.sendall((head + body) * times)

    def ping(self) -> None:
        """Send a ZMTP heartbeat."""
        self.frame(b"\x04PING\x00\x00", COMMAND)

    def is_cut_off(self, seconds: float = 20.0) -> bool:
        """Return whether the other side ends the connection within so many seconds."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            try:
                while self.socket.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
            return True
        return False

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes that came."""
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the other side ended the connection during the handshake"
            data += part
        return data

    def message(self) -> bytes:
        """Return the body of the next frame that is no command."""
        while True:
            flags = self.read(1)[0]
            size = int.from_bytes(self.read(8 if flags & LONG else 1), "big")
            body = self.read(size)
            if not flags & COMMAND:
                return body

    def close(self) -> None:
        """Close without a word."""
        self.socket.close()


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


def memory_mb(pid: int | str) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024.0
    raise AssertionError(f"process {pid} is gone")


def scans_jpeg(side: int, scans: int) -> bytes:
    """Return a small progressive JPEG of side x side pixels whose last refinement scan comes `scans` times more."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True, quality=75)
    data = buffer.getvalue()
    last = data.rfind(b"\xff\xda")
    return data[:-2] + data[last:-2] * scans + data[-2:]


def mutated(payloads: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of the payloads, bent: bits flipped, cut, grown, spliced, repeated or made up."""
    data = bytearray(rng.choice(payloads))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(7):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at] = rng.randrange(256)
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                other = rng.choice(payloads)
                data[at:] = other[rng.randrange(len(other)) :]
            case 5:
                del data[at : at + rng.randrange(1, 9)]
            case _:
                data[at : at + 1] = struct.pack(">BI", rng.choice((0xDD, 0xC6, 0xDB, 0xDF)), rng.randrange(2**32))
    return bytes(data)


class RawVerifier:
    """The other end: accepts one ZMTP connection and sends what no library would."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.peer: RawPeer | None = None

    def accept(self) -> RawPeer:
        """Wait for a robot and return the connection to it, after the handshake."""
        self._listener.settimeout(60.0)
        connection, _ = self._listener.accept()
        connection.settimeout(20.0)
        self.peer = RawPeer.over(connection, b"ROUTER")
        return self.peer

    def close(self) -> None:
        """Close everything."""
        if self.peer is not None:
            self.peer.close()
        self._listener.close()
