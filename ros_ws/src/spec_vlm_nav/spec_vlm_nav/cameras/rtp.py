"""H.264 out of RTP packets (RFC 3550, RFC 6184, packetisation modes 0 and 1), with every loss noticed.

FFmpeg's own reader hides losses: its decoder then makes up what is missing, and such a frame cannot be distinguished
from a true one. Here the sequence numbers show every loss.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEADER = struct.Struct("!BBHII")
_VERSION = 2
_START = b"\0\0\0\1"
_LAST_SINGLE, _STAP_A, _FU_A = 23, 24, 28
_KINDS = 0x1F
_HIGH = 0xE0
_FU_START, _FU_END = 0x80, 0x40


class AccessUnit(NamedTuple):
    """All of one frame that arrived."""

    data: bytes
    """H.264 as a byte stream with start codes."""
    lost: bool
    """Whether packets are missing in it or just before it."""


class _Packet(NamedTuple):
    last: bool
    """Whether it is the last packet of its frame."""
    sequence: int
    timestamp: int
    sender: int
    payload: bytes


def _read(data: bytes) -> _Packet:
    """Return the fields of a packet. Raises ValueError for what is no RTP."""
    if len(data) < _HEADER.size or data[0] >> 6 != _VERSION:
        raise ValueError(f"a packet of {len(data)} bytes is no RTP")
    flags, kind, sequence, timestamp, sender = _HEADER.unpack_from(data)
    start, end = _HEADER.size + 4 * (flags & 0x0F), len(data)
    if flags & 0x10:
        start += 4 + 4 * int.from_bytes(data[start + 2 : start + 4], "big")
    if flags & 0x20:
        end -= data[-1]
    if start > end:
        raise ValueError(f"an RTP packet of {len(data)} bytes claims a longer header")
    return _Packet(bool(kind & 0x80), sequence, timestamp, sender, data[start:end])


class Depacketizer:
    """Packets of one stream in, frames out. A packet out of order counts as lost."""

    def __init__(self) -> None:
        self._before: _Packet | None = None
        self._units: list[bytes] = []
        self._fragments: list[bytes] = []
        self._lost = False

    def push(self, data: bytes) -> AccessUnit | None:
        """Take a datagram and return the frame that it ends, if it does. Raises ValueError for what is no RTP."""
        packet, before = _read(data), self._before
        self._before = packet
        if before is not None:
            follows = packet.sequence == (before.sequence + 1) & 0xFFFF and packet.sender == before.sender
            # A frame ends by its marker; where that packet is lost, the next frame begins with another timestamp.
            ended = before.last or packet.timestamp == before.timestamp
            if not follows or not ended:
                self._lost = True
                if packet.timestamp != before.timestamp:
                    self._units, self._fragments = [], []
        self._take(packet.payload)
        if not packet.last:
            return None
        done = AccessUnit(b"".join(_START + unit for unit in self._units), self._lost or bool(self._fragments))
        self._units, self._fragments, self._lost = [], [], False
        return done

    def _take(self, payload: bytes) -> None:
        kind = payload[0] & _KINDS if payload else 0
        if kind != _FU_A and self._fragments:
            self._fragments, self._lost = [], True
        if 0 < kind <= _LAST_SINGLE:
            self._units.append(payload)
        elif kind == _STAP_A:
            self._take_several(payload[1:])
        elif kind == _FU_A and len(payload) > 2:
            self._take_fragment(payload)
        else:
            self._lost = True

    def _take_several(self, rest: bytes) -> None:
        while len(rest) > 2:
            size = int.from_bytes(rest[:2], "big")
            if not 0 < size <= len(rest) - 2:
                self._lost = True
                return
            self._units.append(rest[2 : 2 + size])
            rest = rest[2 + size :]

    def _take_fragment(self, payload: bytes) -> None:
        if payload[1] & _FU_START:
            self._lost = self._lost or bool(self._fragments)
            self._fragments = [bytes([(payload[0] & _HIGH) | (payload[1] & _KINDS)])]
        elif not self._fragments or self._lost:
            self._fragments, self._lost = [], True
            return
        self._fragments.append(payload[2:])
        if payload[1] & _FU_END:
            self._units.append(b"".join(self._fragments))
            self._fragments = []
