"""What is packetised comes out again, and no loss goes unnoticed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.cameras.rtp import AccessUnit, Depacketizer

UNIT = st.builds(lambda kind, rest: bytes([0x60 | kind]) + rest, st.integers(1, 23), st.binary(min_size=1, max_size=60))
FRAMES = st.lists(st.lists(UNIT, min_size=1, max_size=4), min_size=1, max_size=6)


def rtp(payload: bytes, sequence: int, timestamp: int, last: bool, extras: bool = False) -> bytes:
    flags = 0x80 | (0x31 if extras else 0)
    header = struct.pack("!BBHII", flags, 96 | (0x80 if last else 0), sequence & 0xFFFF, timestamp, 77)
    if not extras:
        return header + payload
    # One contributing source, an extension of one word, three bytes of padding.
    return header + b"\0\0\0\5" + b"\xbe\xde\0\1abcd" + payload + b"\0\0\3"


def payloads_of(units: list[bytes], most: int, together: bool) -> list[bytes]:
    """Return the payloads of a frame: units as they are, aggregated, or in fragments of at most `most` bytes."""
    if together and len(units) > 1:
        return [b"\x78" + b"".join(len(unit).to_bytes(2, "big") + unit for unit in units)]
    found = []
    for unit in units:
        if len(unit) <= most:
            found.append(unit)
            continue
        parts = [unit[at : at + most] for at in range(1, len(unit), most)]
        for number, part in enumerate(parts):
            marks = (0x80 if number == 0 else 0) | (0x40 if number == len(parts) - 1 else 0)
            found.append(bytes([(unit[0] & 0xE0) | 28, marks | (unit[0] & 0x1F)]) + part)
    return found


def packets_of(frames: list[list[bytes]], most: int, together: bool, first: int, extras: bool) -> list[bytes]:
    found: list[bytes] = []
    for time, units in enumerate(frames):
        payloads = payloads_of(units, most, together)
        for number, payload in enumerate(payloads):
            found.append(rtp(payload, first + len(found), 6000 * time, number == len(payloads) - 1, extras))
    return found


def stream(units: list[bytes]) -> bytes:
    return b"".join(b"\0\0\0\1" + unit for unit in units)


SHAPE = {
    "most": st.integers(4, 30),
    "together": st.booleans(),
    "first": st.integers(0, 0xFFFF),
    "extras": st.booleans(),
}


@given(frames=FRAMES, shape=st.fixed_dictionaries(SHAPE))
def test_frames_come_out_as_they_went_in(frames: list[list[bytes]], shape: dict) -> None:
    reader = Depacketizer()
    got = [unit for packet in packets_of(frames, **shape) if (unit := reader.push(packet)) is not None]
    assert got == [AccessUnit(stream(units), False) for units in frames]


@given(frames=FRAMES, shape=st.fixed_dictionaries(SHAPE), data=st.data())
def test_a_frame_that_is_not_whole_is_never_taken_for_a_whole_one(
    frames: list[list[bytes]], shape: dict, data: st.DataObject
) -> None:
    packets = packets_of(frames, **shape)
    gone = data.draw(st.sets(st.integers(1, len(packets)), max_size=len(packets)))
    reader = Depacketizer()
    reader.push(rtp(b"\x61before", shape["first"] - 1, 0xFFFF0000, True))
    arrived = [packet for number, packet in enumerate(packets, start=1) if number not in gone]
    got = [unit for packet in arrived if (unit := reader.push(packet)) is not None]
    whole = [unit.data for unit in got if not unit.lost]
    sent = [stream(units) for units in frames]
    assert all(data in sent for data in whole)
    if not gone:
        assert whole == sent
    # The first frame after any loss is marked, so that its decoder's guesses are not believed.
    kept = [number for number in range(1, len(packets) + 1) if number not in gone]
    if gone and max(kept, default=0) > min(gone) and got and packets[-1] in arrived:
        assert any(unit.lost for unit in got)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_packet_or_a_value_error(data: bytes) -> None:
    reader = Depacketizer()
    for packet in (data, b"\x80" + data, rtp(data, 5, 6, True)):
        try:
            reader.push(packet)
        except ValueError as error:
            assert "RTP" in str(error)


def test_another_sender_is_a_loss() -> None:
    reader = Depacketizer()
    assert reader.push(rtp(b"\x61a", 1, 0, True)) == AccessUnit(stream([b"\x61a"]), False)
    other = bytearray(rtp(b"\x61b", 2, 1, True))
    other[8:12] = b"\0\0\0\1"
    assert reader.push(bytes(other)) == AccessUnit(stream([b"\x61b"]), True)


@pytest.mark.parametrize("payload", [b"", b"\x7c\x80", b"\x7d\0\0\1", b"\x78\0\x09ab"])
def test_what_no_encoder_sends_is_a_loss(payload: bytes) -> None:
    unit = Depacketizer().push(rtp(payload, 1, 0, True))
    assert unit is not None and unit.lost
