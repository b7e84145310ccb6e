"""Finds out whether frames of an H.264 stream were lost: a decoder shows something for them that looks like a view."""

from __future__ import annotations

from collections.abc import Iterator

_SLICE, _KEY_SLICE, _PARAMETERS = 1, 5, 7
_HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128)
_HEADER_BYTES = 64
"""What is read of a unit lies in its first bytes."""


class _Bits:
    """The bits of a unit after its first byte; behind the end there are zeros."""

    def __init__(self, unit: bytes) -> None:
        payload = unit[1:_HEADER_BYTES].replace(b"\0\0\3", b"\0\0")
        self._value, self._left = int.from_bytes(payload, "big") << 256, 8 * len(payload) + 256

    def take(self, count: int) -> int:
        """Return the next `count` bits as a number. Raises ValueError behind the end."""
        self._left -= count
        if self._left < 0:
            raise ValueError("a unit of H.264 ends within its header")
        return (self._value >> self._left) & ((1 << count) - 1)

    def golomb(self) -> int:
        """Return the next unsigned number in Exp-Golomb code (9.1)."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)


class FrameNumbers:
    """The numbers of a stream's reference frames (ITU-T H.264, 7.4.3: `frame_num`), which follow one another."""

    def __init__(self) -> None:
        self._bits = 0
        """Length of a frame's number; 0: not known, or gaps are allowed."""
        self._last = -1

    def gap(self, data: bytes) -> bool:
        """Take the next message in Annex B; return whether frames are missing before it. What is unclear is no gap."""
        missing = False
        for unit in _units(data):
            kind = unit[0] & 31
            try:
                if kind == _PARAMETERS:
                    self._bits = _number_bits(_Bits(unit))
                elif kind in (_SLICE, _KEY_SLICE) and self._bits:
                    missing |= self._follows(_Bits(unit), kind == _KEY_SLICE, bool(unit[0] & 0x60))
            except ValueError:
                continue
        return missing

    def _follows(self, bits: _Bits, is_key: bool, is_reference: bool) -> bool:
        for _ in range(3):  # first macroblock, type of slice, picture parameters
            bits.golomb()
        number, last = bits.take(self._bits), self._last
        if is_reference:
            self._last = number
        return not is_key and last >= 0 and number not in (last, (last + 1) % (1 << self._bits))


def _units(data: bytes) -> Iterator[bytes]:
    """Yield the beginnings of the units of a message."""
    place = data.find(b"\0\0\1")
    while 0 <= place < len(data) - 3:
        yield data[place + 3 : place + 3 + _HEADER_BYTES]
        place = data.find(b"\0\0\1", place + 3)


def _number_bits(bits: _Bits) -> int:
    """Return the length of frames' numbers by a sequence parameter set (7.3.2.1.1); 0 where gaps are allowed."""
    profile = bits.take(8)
    bits.take(16)
    bits.golomb()
    if profile in _HIGH_PROFILES:
        if bits.golomb() == 3:  # 4:4:4, whose slices have one more field
            return 0
        bits.golomb()
        bits.golomb()
        if bits.take(2) & 1:  # scaling lists, which no camera sends
            return 0
    length = bits.golomb() + 4
    order = bits.golomb()
    if order == 0:
        bits.golomb()
    elif order == 1:
        return 0
    bits.golomb()
    return 0 if bits.take(1) else length
