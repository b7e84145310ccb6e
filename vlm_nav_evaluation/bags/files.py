"""Writes mcap bags that `ros2 bag` reads, our own message types included, and reads any rosbag2. Needs no ROS."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

INTERFACES = Path(__file__).resolve().parents[1] / "interfaces"
_IDL_RULE = "=" * 80 + "\n"


def typestore() -> Any:
    """Return Jazzy's message types and ours, read from the workspace's `.msg` files."""
    store = get_typestore(Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for package in ("spec_vlm_nav_interfaces", "unitree_api", "unitree_go"):
        for file in (INTERFACES / package).glob("*.msg"):
            types.update(get_types_from_msg(file.read_text(encoding="utf-8"), f"{package}/msg/{file.stem}"))
    store.register(types)
    return store


def make(store: Any, kind: str, /, **fields: Any) -> Any:
    """Return a message of `kind` with zeros for every field that is not given."""
    values = {}
    for name, (node, details) in store.get_msgdef(kind).fields:
        if name in fields:
            values[name] = fields.pop(name)
        elif node.name == "BASE":
            values[name] = "" if details[0] == "string" else 0
        elif node.name == "NAME":
            values[name] = make(store, details)
        else:
            (_, (base, _)), count = details
            values[name] = np.zeros(count, base)
    return store.types[kind](**values, **fields)


def kind_of(message: type) -> str:
    """Return the name of a ROS message class as bags have it, e.g. 'nav_msgs/msg/Odometry'."""
    return f"{message.__module__.split('.')[0]}/msg/{message.__name__}"


def header_stamp(message: Any) -> int:
    """Return the stamp in a message's header, in nanoseconds."""
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether `path` is a folder or lies in it, so that it goes where the folder is replaced."""
    return path.resolve().is_relative_to(folder.resolve())


class BagWriter:
    """Takes serialized messages from any thread. An existing bag in `folder` is replaced."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.types = typestore()
        self._writer = Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP)
        self._writer.open()
        self._lock = threading.Lock()
        self._connections: dict[str, Any] = {}
        self._open = True

    def write(self, topic: str, kind: str, stamp_ns: int, payload: bytes) -> None:
        """Append a message in CDR; `kind` is e.g. 'nav_msgs/msg/Odometry'. After `close` it is dropped."""
        with self._lock:
            if not self._open:
                return
            if topic not in self._connections:
                self._connections[topic] = self._writer.add_connection(topic, kind, typestore=self.types)
            self._writer.write(self._connections[topic], stamp_ns, payload)

    def put(self, topic: str, stamp_ns: int, message: Any) -> None:
        """Append a message that `make` made."""
        kind = message.__msgtype__
        self.write(topic, kind, stamp_ns, bytes(self.types.serialize_cdr(message, kind)))

    def close(self) -> None:
        """Write the index and close the file."""
        with self._lock:
            if self._open:
                self._open = False
                self._writer.close()


@dataclass(frozen=True)
class Topic:
    """A topic of a bag: its message type, e.g. 'sensor_msgs/msg/Image', and how many messages the bag lists."""

    name: str
    kind: str
    count: int


Reading = TypeVar("Reading", bound="BagReader")


class BagReader:
    """One recorded bag, read lazily: a folder with metadata.yaml, or a single .mcap or .db3 file. A context manager.

    Message definitions are the bag's own where it has them, else Jazzy's (Humble's are the same) and this project's.
    Raises ValueError, in one sentence, for what is no bag or is damaged.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir() and not (path / "metadata.yaml").exists():
            found = next((file for kind in ("*.mcap", "*.db3") for file in sorted(path.glob(kind))), None)
            hint = f"; give {found} itself, or run 'ros2 bag reindex {path}'" if found is not None else ""
            raise ValueError(f"{path} is no bag: it has no metadata.yaml{hint}")
        self.path = path
        with self._one_sentence("cannot be read"):
            self._reader = Reader(path)
            self._reader.open()
        self._default = typestore()
        self._stores: dict[str, Any] = {}
        self.topics = {
            name: Topic(name, info.msgtype or "", info.msgcount) for name, info in self._reader.topics.items()
        }

    def __enter__(self: Reading) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def seconds(self) -> float:
        """Time from the first message to the last."""
        return float(self._reader.duration * 1e-9)

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
        wanted = [connection for connection in self._reader.connections if not topics or connection.topic in topics]
        source = self._reader.messages(wanted) if wanted else iter(())
        first: int | None = None
        where = "at its start"
        while True:
            with self._one_sentence(f"is damaged {where}"):
                item = next(source, None)
            if item is None:
                return
            connection, received_ns, raw = item
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
            own = next((c.msgdef for c in self._reader.connections if c.msgtype == kind and c.msgdef.data), None)
            self._stores[kind] = (own and _own_types(kind, own)) or self._default
        with self._one_sentence(f"has a message on {topic} that is no {kind}"):
            return self._stores[kind].deserialize_cdr(raw, kind)

    @contextmanager
    def _one_sentence(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library raises whatever its parser meets in a damaged file
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(f"bag {self.path} {what}: {reason}") from None


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


def read(folder: Path, kinds: Collection[str] = ()) -> Iterator[tuple[str, int, Any]]:
    """Yield (topic, receive time in ns, message) in order of time; only messages of the types `kinds`, if any is named.

    Raises ValueError if `folder` holds no bag, or a damaged one.
    """
    with BagReader(folder) as bag:
        yield from bag.decoded([topic.name for topic in bag.topics.values() if not kinds or topic.kind in kinds])
