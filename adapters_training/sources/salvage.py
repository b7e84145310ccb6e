"""Reads the whole messages of .mcap files that were never closed or are cut off, which rosbags refuses."""

from __future__ import annotations

import struct
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lz4.frame import LZ4FrameDecompressor
from rosbags.interfaces import Connection, ConnectionExtRosbag2, MessageDefinition, MessageDefinitionFormat

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MAGIC = b"\x89MCAP0\r\n"
_FORMATS = {"ros2msg": MessageDefinitionFormat.MSG, "ros2idl": MessageDefinitionFormat.IDL}
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _END_OF_DATA, _FOOTER = 3, 4, 5, 6, 15, 2
_HEADER, _MESSAGE_HEADER, _CHUNK_HEADER = struct.Struct("<BQ"), struct.Struct("<HIQQ"), struct.Struct("<QQQI")
_CACHED_CHUNKS = 4


class _Message(NamedTuple):
    stamp_ns: int
    channel: int
    chunk: tuple[int, int] | None
    """Where its chunk lies in the file; None for a message outside of chunks."""
    begin: int
    end: int
    """The record begins at this byte of the chunk's records, or of the file where it lies in no chunk."""


class SalvagedMcap:
    """An .mcap without a usable index, read record by record; of a chunk that is cut, its whole messages.

    Raises ValueError for what is no mcap file at all.
    """

    def __init__(self, path: Path) -> None:
        self.connections: list[Connection] = []
        self._messages: list[_Message] = []
        self._schemas: dict[int, tuple[str, MessageDefinition]] = {}
        self._file = path.open("rb")
        self._chunk = lru_cache(_CACHED_CHUNKS)(self._read_chunk)
        try:
            if self._file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it does not begin as an mcap file does")
            self._scan(path.stat().st_size)
        except BaseException:
            self._file.close()
            raise
        known = {each.id for each in self.connections}
        found = [message for message in self._messages if message.channel in known]
        self._messages = sorted(found, key=lambda message: message.stamp_ns)
        counts = Counter(message.channel for message in self._messages)
        self.connections = [each._replace(msgcount=counts[each.id]) for each in self.connections]

    @property
    def start_time(self) -> int:
        """Time of the first message, in nanoseconds."""
        return self._messages[0].stamp_ns if self._messages else 0

    @property
    def end_time(self) -> int:
        """Time after the last message, in nanoseconds."""
        return self._messages[-1].stamp_ns + 1 if self._messages else 0

    @property
    def message_count(self) -> int:
        """Number of messages that are whole."""
        return len(self._messages)

    def messages(self, connections: Collection[Connection]) -> Iterator[tuple[Connection, int, bytes]]:
        """Yield messages in order of time."""
        wanted = {connection.id: connection for connection in connections}
        for message in self._messages:
            if message.channel in wanted:
                yield wanted[message.channel], message.stamp_ns, self._bytes(message)

    def close(self) -> None:
        """Close the file."""
        self._chunk.cache_clear()
        self._file.close()

    def _bytes(self, message: _Message) -> bytes:
        if message.chunk is not None:
            return self._chunk(*message.chunk)[message.begin : message.end]
        self._file.seek(message.begin)
        return self._file.read(message.end - message.begin)

    def _scan(self, size: int) -> None:
        """Take in the file's records up to the end of its data, or where it is cut."""
        place = len(_MAGIC)
        while place + _HEADER.size <= size:
            self._file.seek(place)
            code, length = _HEADER.unpack(self._file.read(_HEADER.size))
            begin, end = place + _HEADER.size, place + _HEADER.size + length
            if code in (0, _END_OF_DATA, _FOOTER):
                return
            if code == _CHUNK:
                chunk = begin, min(end, size)
                with suppress(ValueError, struct.error, RuntimeError, zstd.ZstdError):
                    self._note(self._read_chunk(*chunk), chunk)
            elif end <= size and code in (_SCHEMA, _CHANNEL, _MESSAGE):
                self._file.seek(place)
                self._note(self._file.read(end - place), None, place)
            place = end

    def _note(self, records: bytes, chunk: tuple[int, int] | None, offset: int = 0) -> None:
        """Take schemas, channels and messages out of whole records; what holds something else is left out."""
        place = 0
        while place + _HEADER.size <= len(records):
            code, length = _HEADER.unpack_from(records, place)
            begin, end = place + _HEADER.size, place + _HEADER.size + length
            if end > len(records) or code == 0:
                return
            with suppress(ValueError, struct.error):
                if code == _MESSAGE:
                    body = begin + _MESSAGE_HEADER.size
                    channel, _, stamp_ns, _ = _MESSAGE_HEADER.unpack(records[begin : min(body, end)])
                    self._messages.append(_Message(stamp_ns, channel, chunk, offset + body, offset + end))
                elif code in (_SCHEMA, _CHANNEL):
                    self._note_topic(code, records[begin:end])
            place = end

    def _note_topic(self, code: int, record: bytes) -> None:
        """Take in a schema or a channel. Raises ValueError or struct.error for what is none."""
        if code == _SCHEMA:
            (number,), (name, encoding, definition) = struct.unpack_from("<H", record), _texts(record, 2, 3)
            form = _FORMATS.get(encoding, MessageDefinitionFormat.NONE)
            self._schemas[number] = name, MessageDefinition(form, definition)
            return
        number, schema = struct.unpack_from("<HH", record)
        topic, encoding = _texts(record, 4, 2)
        if all(each.id != number for each in self.connections):
            nothing = "", MessageDefinition(MessageDefinitionFormat.NONE, "")
            kind, definition_of = self._schemas.get(schema, nothing)
            extension = ConnectionExtRosbag2(encoding, [])
            self.connections.append(Connection(number, topic, kind, definition_of, "", 0, extension, self))

    def _read_chunk(self, begin: int, end: int) -> bytes:
        """Return the records of the chunk that lies there; of one that is cut, as much as comes out of it."""
        self._file.seek(begin)
        content = self._file.read(end - begin)
        *_, expected, checksum = _CHUNK_HEADER.unpack_from(content)
        (compression,) = _texts(content, _CHUNK_HEADER.size, 1)
        data = content[_CHUNK_HEADER.size + 4 + len(compression) + 8 :]
        if compression == "zstd":
            data = zstd.ZstdDecompressor().decompress(data)
        elif compression == "lz4":
            data = LZ4FrameDecompressor().decompress(data)
        elif compression:
            raise ValueError(f"chunks compressed by {compression} cannot be read")
        if checksum and len(data) == expected and zlib.crc32(data) != checksum:
            raise ValueError("a chunk's checksum is wrong")
        return data


def _texts(data: bytes, place: int, count: int) -> list[str]:
    """Return `count` strings, each behind its length. Raises ValueError where the bytes end before."""
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, place)
        place += 4 + length
        if place > len(data):
            raise ValueError("a record ends within a text")
        found.append(data[place - length : place].decode())
    return found
