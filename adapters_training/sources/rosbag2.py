"""Reads any rosbag2 without ROS: whole bags, and of bags that were never closed or are cut off whatever is whole.

A recorder that is killed, or whose disk is full, leaves a folder without metadata.yaml, an .mcap without its index, or
an .db3 with a journal beside it. Nothing beside the user's files is written; temporary copies are removed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, TypeVar

from lz4.frame import LZ4FrameDecompressor
from rosbags.interfaces import Connection, ConnectionExtRosbag2, MessageDefinition, MessageDefinitionFormat
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from ruamel.yaml import YAML

from speculation.settings import expanded

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

METADATA = "metadata.yaml"
SUFFIXES = (".mcap", ".db3")
COMPRESSED_SUFFIX = ".zstd"
JOURNALS = ("-wal", "-journal")
GO2_VIDEO, FOXGLOVE_VIDEO = "unitree_go/msg/Go2FrontVideoData", "foxglove_msgs/msg/CompressedVideo"
_IDL_RULE = "=" * 80 + "\n"
_ROS1_MAGIC, _MCAP_MAGIC, _ZSTD_MAGIC = b"#ROSBAG", b"\x89MCAP0\r\n", b"\x28\xb5\x2f\xfd"
_FORMATS = {"ros2msg": MessageDefinitionFormat.MSG, "ros2idl": MessageDefinitionFormat.IDL}
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _END_OF_DATA, _FOOTER = 3, 4, 5, 6, 15, 2
_HEADER, _MESSAGE_HEADER, _CHUNK_HEADER = struct.Struct("<BQ"), struct.Struct("<HIQQ"), struct.Struct("<QQQI")
_CACHED_CHUNKS = 4


@dataclass(frozen=True)
class Topic:
    """A topic of a bag: its message type, e.g. 'sensor_msgs/msg/Image', and how many messages the bag lists."""

    name: str
    kind: str
    count: int


class Storage(Protocol):
    """What is read of one file, or of a whole folder: rosbags' `Reader`, or `Salvaged`."""

    @property
    def connections(self) -> list[Connection]: ...

    @property
    def start_time(self) -> int: ...

    @property
    def end_time(self) -> int: ...

    @property
    def message_count(self) -> int: ...

    def messages(self, connections: Collection[Connection]) -> Iterator[tuple[Connection, int, bytes]]:
        """Yield messages in order of time."""
        ...

    def close(self) -> None: ...


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


Reading = TypeVar("Reading", bound="BagReader")


class BagReader:
    """One recorded bag, read lazily: a folder, with metadata.yaml or without, or one of its files. A context manager.

    Of a file that was never closed or is cut what is whole is read, and `problems` tells what is not, a sentence each.
    Message definitions are the bag's own where it has them, else those of `types`, a typestore of rosbags. Raises
    ValueError, in one sentence, for what is no bag and where nothing can be read.
    """

    def __init__(self, path: Path, types: Any = None) -> None:
        self.path = path = expanded(path)
        if path.name == METADATA:
            self.path = path = path.parent
        self.problems: list[str] = []
        self._default = types if types is not None else get_typestore(Stores.ROS2_JAZZY)
        self._stores: dict[str, Any] = {}
        with ExitStack() as stack:
            try:
                self._parts = self._open(stack)
            except OSError as error:  # a folder or file that may not be read, no room for a copy
                raise ValueError(f"bag {path} cannot be read: {error}") from None
            self._stack = stack.pop_all()
        self._connections = [each for part in self._parts for each in part.connections]
        self.topics = self._topics()

    def __enter__(self: Reading) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def seconds(self) -> float:
        """Time from the first message to the last."""
        parts = [part for part in self._parts if part.message_count]
        return (max(p.end_time for p in parts) - min(p.start_time for p in parts)) * 1e-9 if parts else 0.0

    def find(self, kinds: Collection[str], wanted: str = "") -> Topic | None:
        """Return the topic of one of these types that is called `wanted`; without a name the one that starts first."""
        topics = [topic for topic in self.topics.values() if topic.kind in kinds]
        if wanted:
            return next((topic for topic in topics if topic.name.lstrip("/") == wanted.lstrip("/")), None)
        if len(topics) < 2:
            return topics[0] if topics else None
        earliest = next(self.messages([topic.name for topic in topics]), None)
        return self.topics[earliest[0]] if earliest is not None else topics[0]

    def messages(self, topics: Collection[str] = ()) -> Iterator[tuple[str, int, bytes]]:
        """Yield (topic, receive time in ns, message in CDR) in order of time, of all topics or of some.

        Raises ValueError where the file is damaged; what came before is good.
        """
        first: int | None = None
        where = "at its start"
        for part in self._parts:
            wanted = [each for each in part.connections if not topics or each.topic in topics]
            source = part.messages(wanted) if wanted else iter(())
            while True:
                with self._one_sentence(f"is damaged {where}"):
                    item = next(source, None)
                    if item is None:
                        break
                    connection, received_ns, raw = item
                    if raw[:4] == _ZSTD_MAGIC:  # compressed message by message, which the metadata would tell
                        raw = zstd.decompress(raw)
                first = received_ns if first is None else first
                where = f"after {(received_ns - first) * 1e-9:.1f} s"
                yield connection.topic, received_ns, raw

    def decoded(self, topics: Collection[str]) -> Iterator[tuple[str, int, Any]]:
        """Yield (topic, receive time in ns, message) of these topics in order of time; raises as `messages`."""
        for topic, received_ns, raw in self.messages(topics) if topics else ():
            yield topic, received_ns, self.decode(topic, raw)

    def decode(self, topic: str, raw: bytes) -> Any:
        """Return a message. Raises ValueError for bytes that do not fit the topic's type."""
        kind = self.topics[topic].kind
        if kind not in self._stores:
            own = next((c.msgdef for c in self._connections if c.msgtype == kind and c.msgdef.data), None)
            self._stores[kind] = (own and _own_types(kind, own)) or self._default
        with self._one_sentence(f"has a message on {topic} that is no {kind}"):
            return self._stores[kind].deserialize_cdr(raw, kind)

    def _topics(self) -> dict[str, Topic]:
        found: dict[str, Topic] = {}
        for each in sorted(self._connections, key=lambda connection: connection.topic):
            known = found.get(each.topic)
            kind = each.msgtype if known is None or known.kind == each.msgtype else ""
            found[each.topic] = Topic(each.topic, kind, each.msgcount + (known.count if known else 0))
        return found

    def _open(self, stack: ExitStack) -> list[Storage]:
        """Open the bag as it should be, or else file by file. Raises ValueError where no file can be read."""
        path = self.path
        if not path.exists():
            raise ValueError(f"bag {path} does not exist")
        files = _files(path)
        if not any(_journals(file) or _is_cut(file) for file in files):
            with suppress(Exception):  # what is wrong is found file by file
                return [_opened(stack, Reader(path))]
        parts = list[Storage]()
        reasons = list[str]()
        for file in files:
            try:
                parts.append(self._open_file(stack, file))
            except Exception as error:  # the libraries raise whatever their parsers meet in a damaged file
                reasons.append(f"{file} cannot be read: {_reason(error)}")
        if not any(part.connections for part in parts):
            raise ValueError(f"bag {reasons[0]}" if reasons else f"bag {path} holds no messages at all")
        self.problems += [f"bag {reason}" for reason in reasons]
        self._compare(sum(part.message_count for part in parts), files)
        return sorted(parts, key=lambda part: part.start_time)

    def _open_file(self, stack: ExitStack, file: Path) -> Storage:
        """Open one file of a bag, and note what of it is lost."""
        named, file = file, _copied(stack, file)
        if not _is_cut(file):
            with suppress(Exception):  # its index is missing or wrong
                return _opened(stack, Reader(file))
        part = SalvagedMcap(file) if file.suffix == ".mcap" else SalvagedSqlite(file)
        stack.callback(part.close)
        other = {each.ext.serialization_format for each in part.connections} - {"cdr"}  # type: ignore[union-attr]
        if other:
            raise ValueError(f"its messages are encoded as {', '.join(sorted(other))}, those of ROS 2 as cdr")
        if not part.message_count:
            raise ValueError(f"it was not closed and holds no whole message; {part.lost or 'nothing was recorded'}")
        if part.lost:
            seconds = (part.end_time - part.start_time) * 1e-9
            self.problems.append(
                f"bag {named} was not closed or is cut off: {part.message_count} whole messages over {seconds:.1f} s "
                f"are read; {part.lost}{_recovery(named)}"
            )
        return part

    def _compare(self, count: int, files: Sequence[Path]) -> None:
        """Note how many messages a folder's metadata has that its files have not."""
        try:
            listed = YAML(typ="safe").load((self.path / METADATA).read_text(encoding="utf-8"))[
                "rosbag2_bagfile_information"
            ]
            missing = {Path(name).name for name in listed["relative_file_paths"]} - {file.name for file in files}
            if missing:
                self.problems.append(f"bag {self.path} lacks the files {', '.join(sorted(missing))}")
            if listed["message_count"] > count:
                self.problems.append(
                    f"bag {self.path}: {count} of {listed['message_count']} recorded messages are there"
                )
        except Exception:  # a file without metadata, or with metadata that cannot be read: nothing to compare with
            return

    @contextmanager
    def _one_sentence(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library raises whatever its parser meets in a damaged file
            raise ValueError(f"bag {self.path} {what}: {_reason(error)}") from None


def _recovery(file: Path) -> str:
    """Return how other tools come by a file that they read; empty for a compressed one, which none of them takes."""
    name = shlex.quote(str(file))
    commands = {
        ".mcap": f"mcap recover {name} -o whole.mcap",
        ".db3": f'sqlite3 {name} ".recover" | sqlite3 whole.db3',
    }
    command = commands.get(file.suffix)
    return f"; `{command}` makes a file of them that other tools read" if command else ""


def unseen_videos(bag: BagReader) -> list[str]:
    """Return a sentence for each video stream of a bag, for a command that found no images and decodes no video."""
    return [
        f"bag {bag.path}: {topic.name} is a video stream, which is not decoded here; record the camera's images with it"
        for topic in bag.topics.values()
        if topic.kind in (GO2_VIDEO, FOXGLOVE_VIDEO)
    ]


def is_bag(path: Path) -> bool:
    """Return whether a path looks like a bag of ROS 2, whole or not, or like one of ROS 1, which is then refused."""
    if path.is_dir():
        return (path / METADATA).exists() or any(_storage_suffix(file) for file in path.iterdir())
    return _storage_suffix(path) != "" or path.suffix == ".bag" or path.name == METADATA


def _storage_suffix(path: Path) -> str:
    name = path.name.removesuffix(COMPRESSED_SUFFIX)
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def _files(path: Path) -> list[Path]:
    """Return the files of a bag in their order. Raises ValueError, with what to do, where it is no bag of ROS 2."""
    if path.is_file():
        with path.open("rb") as file:
            is_ros1 = file.read(len(_ROS1_MAGIC)) == _ROS1_MAGIC
        if is_ros1 or path.suffix == ".bag":
            raise ValueError(
                f"{path} is a bag of ROS 1; 'rosbags-convert --src {path} --dst {path.with_suffix('')}' makes one of "
                "ROS 2 of it"
            )
        if not _storage_suffix(path):
            raise ValueError(f"{path} is no bag: its name ends in none of {', '.join(SUFFIXES)}")
        return [path]
    inside = sorted(path.iterdir())
    files = [file for file in inside if _storage_suffix(file)]
    if files:
        names = {
            re.sub(r"_?\d*$", "", file.name.removesuffix(COMPRESSED_SUFFIX)[: -len(_storage_suffix(file))])
            for file in files
        }
        if len(names) > 1 and not (path / METADATA).exists():
            raise ValueError(f"{path} holds several bags; name one of {', '.join(file.name for file in files)}")
        return sorted(files, key=lambda file: [int(part) for part in re.findall(r"\d+", file.name)[-1:]])
    old = next((file for file in inside if file.suffix == ".bag" and file.is_file()), None)
    if old is not None:
        return _files(old)
    bags = [folder.name for folder in inside if folder.is_dir() and is_bag(folder)]
    what = (
        f"holds the bags {', '.join(bags)}; name one"
        if bags
        else f"has no {METADATA} and no {' or '.join(SUFFIXES)} file"
    )
    raise ValueError(f"{path} is no bag: it {what}")


def _journals(file: Path) -> list[Path]:
    """Return the files beside an .db3 in which SQLite left what is not in it yet, or must be taken back."""
    beside = [file.with_name(file.name + journal) for journal in JOURNALS] if file.suffix == ".db3" else []
    return [path for path in beside if path.is_file() and path.stat().st_size]


def _is_cut(file: Path) -> bool:
    """Return whether an .db3 is shorter than its header says, which SQLite notices only where it needs what is lost."""
    if file.suffix != ".db3":
        return False
    with file.open("rb") as data:
        header = data.read(100)
    if len(header) < 100:
        return True
    (page,), (pages,) = struct.unpack_from(">H", header, 16), struct.unpack_from(">I", header, 28)
    return int(pages * (65536 if page == 1 else page)) > file.stat().st_size


def _copied(stack: ExitStack, file: Path) -> Path:
    """Return a file that can be read as it is: itself, or a copy without compression or with its journal worked in."""
    journals = _journals(file)
    if file.suffix != COMPRESSED_SUFFIX and not journals:
        return file
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="bag-")))
    copy = folder / file.name.removesuffix(COMPRESSED_SUFFIX)
    if journals:
        for path in (file, *journals):
            shutil.copyfile(path, folder / path.name)
        with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return copy
    with file.open("rb") as source, copy.open("wb") as target:
        unpacking = zstd.ZstdDecompressor()
        with suppress(zstd.ZstdError):  # what comes before the damage is read
            while (data := source.read(1 << 20)) and not unpacking.eof:
                target.write(unpacking.decompress(data))
    return copy


def _opened(stack: ExitStack, reader: Any) -> Storage:
    reader.open()
    stack.callback(reader.close)
    opened: Storage = reader
    return opened


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _own_types(kind: str, definition: MessageDefinition) -> Any:
    """Return the types of a definition that a bag carries, None where it cannot be used."""
    try:
        if definition.format == MessageDefinitionFormat.IDL:
            types: dict[str, Any] = {}
            for part in filter(None, definition.data.split(_IDL_RULE)):
                types.update(get_types_from_idl(part.partition("\n")[2] if part.startswith("IDL: ") else part))
        else:
            types = get_types_from_msg(definition.data, kind)
        store = get_typestore(Stores.EMPTY)
        store.register(types)
        store.get_msgdef(kind)
    except Exception:  # a definition that the parser cannot read; the distribution's own may do
        return None
    return store
