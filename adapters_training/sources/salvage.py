"""Reads the whole messages of bag files that were never closed or are cut off, which rosbags refuses."""

from __future__ import annotations

import sqlite3
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lz4.frame import LZ4FrameDecompressor
from rosbags.interfaces import Connection, ConnectionExtRosbag2, MessageDefinition, MessageDefinitionFormat

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MCAP_MAGIC = b"\x89MCAP0\r\n"
_FORMATS = {"ros2msg": MessageDefinitionFormat.MSG, "ros2idl": MessageDefinitionFormat.IDL}
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _END_OF_DATA, _FOOTER = 3, 4, 5, 6, 15, 2
_HEADER, _MESSAGE_HEADER, _CHUNK_HEADER = struct.Struct("<BQ"), struct.Struct("<HIQQ"), struct.Struct("<QQQI")
_CACHED_CHUNKS = 4


class _Entry(NamedTuple):
    stamp_ns: int
    connection: int
    place: Any
    """Where the message is, for `Salvaged._fetch`."""


class Salvaged:
    """The whole messages of a file that was not closed or is cut.

    `lost` ends a sentence about what is not whole; empty where nothing is lost.
    """

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.lost = ""
        self._entries: list[_Entry] = []

    @property
    def start_time(self) -> int:
        """Time of the first message, in nanoseconds."""
        return self._entries[0].stamp_ns if self._entries else 0

    @property
    def end_time(self) -> int:
        """Time after the last message, in nanoseconds."""
        return self._entries[-1].stamp_ns + 1 if self._entries else 0

    @property
    def message_count(self) -> int:
        """Number of messages that are whole."""
        return len(self._entries)

    def messages(self, connections: Collection[Connection]) -> Iterator[tuple[Connection, int, bytes]]:
        """Yield messages in order of time."""
        wanted = {connection.id: connection for connection in connections}
        for entry in self._entries:
            if entry.connection in wanted:
                data = self._fetch(entry.place)
                if data is not None:
                    yield wanted[entry.connection], entry.stamp_ns, data

    def _fetch(self, place: Any) -> bytes | None:
        """Return a message's bytes, None where they are lost after all."""
        raise NotImplementedError

    def _drop_unknown(self) -> list[_Entry]:
        """Drop the messages of topics about which nothing is known; return them."""
        known = {each.id for each in self.connections}
        unknown = [entry for entry in self._entries if entry.connection not in known]
        self._entries = [entry for entry in self._entries if entry.connection in known]
        return unknown

    def _order(self) -> None:
        self._entries.sort(key=lambda entry: entry.stamp_ns)
        counts = Counter(entry.connection for entry in self._entries)
        self.connections = [each._replace(msgcount=counts[each.id]) for each in self.connections]

    def _connect(self, number: int, topic: str, kind: str, definition: MessageDefinition, encoding: str) -> None:
        extension = ConnectionExtRosbag2(encoding, [])
        self.connections.append(Connection(number, topic, kind, definition, "", 0, extension, self))


class SalvagedMcap(Salvaged):
    """An .mcap without a usable index, read record by record; of a chunk that is cut, its whole messages.

    Raises ValueError for what is no mcap file at all.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._schemas: dict[int, tuple[str, MessageDefinition]] = {}
        self._chunk = lru_cache(_CACHED_CHUNKS)(self._read_chunk)
        try:
            if self._file.read(len(_MCAP_MAGIC)) != _MCAP_MAGIC:
                raise ValueError("it does not begin as an mcap file does")
            self._scan(path.stat().st_size)
        except BaseException:
            self._file.close()
            raise
        self._order()

    def close(self) -> None:
        """Close the file."""
        self._chunk.cache_clear()
        self._file.close()

    def _scan(self, size: int) -> None:
        place, lost, ended = len(_MCAP_MAGIC), 0, False
        while place + _HEADER.size <= size and not ended:
            self._file.seek(place)
            code, length = _HEADER.unpack(self._file.read(_HEADER.size))
            begin, end = place + _HEADER.size, place + _HEADER.size + length
            ended = code in (_END_OF_DATA, _FOOTER)
            if code == 0:
                break
            whole = end <= size
            if code == _CHUNK:
                try:
                    records = self._read_chunk(begin, min(end, size))
                except (ValueError, struct.error, RuntimeError, zstd.ZstdError):
                    records = b""
                taken = self._note(records, (begin, min(end, size)))
                lost += len(records) - taken if taken else min(end, size) - place
            elif whole and code in (_SCHEMA, _CHANNEL, _MESSAGE):
                self._file.seek(place)
                lost += end - place - self._note(self._file.read(end - place), None, place)
            elif not whole:
                lost += size - place
            place = min(end, size)
        if not ended:
            lost += size - place
        lost += sum(entry.place[2] - entry.place[1] for entry in self._drop_unknown())
        if lost:
            self.lost = f"{lost:,} of its {size:,} bytes belong to no whole message and are lost"
        elif not ended:
            self.lost = "what its recorder had not written yet is lost"

    def _note(self, records: bytes, chunk: tuple[int, int] | None, offset: int = 0) -> int:
        """Take schemas, channels and messages out of whole records; return how many bytes those are.

        A record that holds something else than its code says is left out.
        """
        place = taken = 0
        while place + _HEADER.size <= len(records):
            code, length = _HEADER.unpack_from(records, place)
            begin, end = place + _HEADER.size, place + _HEADER.size + length
            if end > len(records) or code == 0:
                break
            with suppress(ValueError, struct.error):
                if code == _MESSAGE:
                    body = begin + _MESSAGE_HEADER.size
                    channel, _, stamp_ns, _ = _MESSAGE_HEADER.unpack(records[begin : min(body, end)])
                    self._entries.append(_Entry(stamp_ns, channel, (chunk, offset + body, offset + end)))
                elif code in (_SCHEMA, _CHANNEL):
                    self._note_topic(code, records[begin:end])
                taken += end - place
            place = end
        return taken

    def _note_topic(self, code: int, record: bytes) -> None:
        """Take in a schema or a channel. Raises ValueError or struct.error for what is none."""
        if code == _SCHEMA:
            (number,), texts = struct.unpack_from("<H", record), _texts(record, 2, 3)
            name, encoding, definition = texts
            form = _FORMATS.get(encoding, MessageDefinitionFormat.NONE)
            self._schemas[number] = name, MessageDefinition(form, definition)
            return
        number, schema = struct.unpack_from("<HH", record)
        topic, encoding = _texts(record, 4, 2)
        if all(each.id != number for each in self.connections):
            nothing = "", MessageDefinition(MessageDefinitionFormat.NONE, "")
            self._connect(number, topic, *self._schemas.get(schema, nothing), encoding)

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

    def _fetch(self, place: Any) -> bytes | None:
        chunk, begin, end = place
        if chunk is not None:
            return self._chunk(*chunk)[begin:end]
        self._file.seek(begin)
        return self._file.read(end - begin)


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


class SalvagedSqlite(Salvaged):
    """An .db3 that is cut or damaged, read row by row in the order of recording, as far as that goes.

    Raises ValueError or sqlite3.Error where not even the list of topics can be read.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._rows = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            # Without this SQLite refuses a file that is shorter than its header says.
            self._rows.execute("PRAGMA writable_schema=ON")
            definitions = self._definitions()
            for number, topic, kind, encoding in self._rows.execute(
                "SELECT id, name, type, serialization_format FROM topics"
            ):
                nothing = MessageDefinition(MessageDefinitionFormat.NONE, "")
                self._connect(number, topic, kind, definitions.get(kind, nothing), encoding)
            with suppress(sqlite3.DatabaseError):
                # The index may lie in what is lost.
                rows = self._rows.execute("SELECT id, topic_id, timestamp FROM messages NOT INDEXED")
                for row, number, stamp_ns in rows:
                    self._entries.append(_Entry(stamp_ns, number, row))
            while self._entries and self._fetch(self._entries[-1].place) is None:
                self._entries.pop()
        except BaseException:
            self._rows.close()
            raise
        self._drop_unknown()
        self.lost = f"what else was in its {path.stat().st_size:,} bytes, or after them, is lost"
        self._order()

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def _definitions(self) -> dict[str, MessageDefinition]:
        try:
            rows = self._rows.execute(
                "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
            ).fetchall()
        except sqlite3.DatabaseError:  # Humble's bags have none
            return {}
        return {kind: MessageDefinition(_FORMATS[form], text) for kind, form, text in rows if form in _FORMATS}

    def _fetch(self, place: Any) -> bytes | None:
        try:
            row = self._rows.execute("SELECT data FROM messages WHERE id = ?", (place,)).fetchone()
        except sqlite3.DatabaseError:
            return None
        return bytes(row[0]) if row is not None else None
