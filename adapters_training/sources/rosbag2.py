"""Reads any rosbag2 without ROS.

A killed recorder leaves a folder without metadata.yaml, which is read file by file; an .mcap without its index or a
.db3 with a journal beside it is refused with the command that mends it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from ruamel.yaml import YAML

from speculation.settings import expanded

METADATA = "metadata.yaml"
SUFFIXES = (".mcap", ".db3")
COMPRESSED_SUFFIX = ".zstd"
JOURNALS = ("-wal", "-journal")
GO2_VIDEO, FOXGLOVE_VIDEO = "unitree_go/msg/Go2FrontVideoData", "foxglove_msgs/msg/CompressedVideo"
_IDL_RULE = "=" * 80 + "\n"
_ROS1_MAGIC = b"#ROSBAG"


@dataclass(frozen=True)
class Topic:
    """A topic of a bag: its message type, e.g. 'sensor_msgs/msg/Image', and how many messages the bag lists."""

    name: str
    kind: str
    count: int


Reading = TypeVar("Reading", bound="BagReader")


class BagReader:
    """One recorded bag, read lazily: a folder, with metadata.yaml or without, or one of its files. A context manager.

    Where one of several files cannot be read the others are; `problems` has a sentence for each that is left out.
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

    def _open(self, stack: ExitStack) -> list[Reader]:
        """Open the bag as it should be, or else file by file. Raises ValueError where no file can be read."""
        path = self.path
        if not path.exists():
            raise ValueError(f"bag {path} does not exist")
        files = _files(path)
        for file in files:
            _check_journal(file)
        try:
            return [_with_one_qos(_opened(stack, Reader(path)))]
        except Exception as error:  # what is wrong is found file by file, where files are not compressed
            whole = f"{path} cannot be read: {_reason(error)}"
        parts = list[Reader]()
        reasons = list[str]()
        for file in files:
            try:
                parts.append(_opened(stack, Reader(file)))
            except Exception as error:  # the libraries raise whatever their parsers meet in a damaged file
                reasons.append(f"{file} cannot be read: {_reason(error)}{_recovery(file)}")
        if not any(part.connections for part in parts):
            raise ValueError(f"bag {[*reasons, f'{path} holds no messages at all' if parts else whole][0]}")
        self.problems += [f"bag {reason}" for reason in reasons]
        missing = _listed(path) - {file.name for file in files}
        if missing:
            self.problems.append(f"bag {path} lacks the files {', '.join(sorted(missing))}")
        return sorted(parts, key=lambda part: part.start_time)

    @contextmanager
    def _one_sentence(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library raises whatever its parser meets in a damaged file
            raise ValueError(f"bag {self.path} {what}: {_reason(error)}") from None


def _listed(bag: Path) -> set[str]:
    """Return the files that a folder's metadata names; none where it has none that can be read."""
    try:
        held = YAML(typ="safe").load((bag / METADATA).read_text(encoding="utf-8"))
        return {Path(name).name for name in held["rosbag2_bagfile_information"]["relative_file_paths"]}
    except Exception:  # a file without metadata, or with metadata of any other shape
        return set()


def _recovery(file: Path) -> str:
    """Return the command that saves what is whole in a damaged file; empty for a file of another kind."""
    name = shlex.quote(str(file))
    commands = {
        ".mcap": f"mcap recover {name} -o whole.mcap",
        ".db3": f'sqlite3 {name} ".recover" | sqlite3 whole.db3',
    }
    command = commands.get(file.suffix)
    return f"; `{command}` makes a whole file of what its recorder had written" if command else ""


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
        return (path / METADATA).exists() or any(file.suffix in SUFFIXES for file in path.iterdir())
    return path.suffix in (*SUFFIXES, ".bag") or path.name == METADATA


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
        if path.suffix not in SUFFIXES:
            raise ValueError(f"{path} is no bag: its name ends in none of {', '.join(SUFFIXES)}")
        return [path]
    inside = sorted(path.iterdir())
    files = [file for file in inside if file.suffix in SUFFIXES]
    if files or any(file.suffix == COMPRESSED_SUFFIX for file in inside):
        names = {re.sub(r"_?\d*$", "", file.stem) for file in files}
        if len(names) > 1 and not (path / METADATA).exists():
            raise ValueError(f"{path} holds several bags; name one of {', '.join(file.name for file in files)}")
        return sorted(files, key=lambda file: [int(part) for part in re.findall(r"\d+", file.name)[-1:]])
    old = next((file for file in inside if file.suffix == ".bag" and file.is_file()), None)
    if old is not None:
        return _files(old)
    bags = [folder.name for folder in inside if folder.is_dir() and is_bag(folder)]
    what = f"has no {METADATA} and no {' or '.join(SUFFIXES)} file"
    if bags:
        what = f"holds the bags {', '.join(bags)}; name one"
    elif listed := _listed(path):
        what = f"lacks the files that its {METADATA} lists, {', '.join(sorted(listed))}"
    raise ValueError(f"{path} is no bag: it {what}")


def _check_journal(file: Path) -> None:
    """Raise ValueError for an .db3 beside which SQLite left what is not in it yet, or must be taken back."""
    beside = [file.with_name(file.name + journal) for journal in JOURNALS] if file.suffix == ".db3" else []
    if any(path.is_file() and path.stat().st_size for path in beside):
        raise ValueError(
            f"bag {file} was not closed, a part of it is in a journal; `sqlite3 {shlex.quote(str(file))} 'PRAGMA "
            "integrity_check'` works that in"
        )


def _opened(stack: ExitStack, reader: Any) -> Reader:
    reader.open()
    stack.callback(reader.close)
    opened: Reader = reader
    return opened


def _with_one_qos(reader: Any) -> Reader:
    """Let the files of a folder have the QoS of its metadata.

    To the library a topic with another QoS is another topic, whose messages it passes over without a word. Recorders
    note the QoS in both places, and not always the same.
    """
    known = {(each.topic, each.msgtype): each.ext for each in reader.connections}
    for storage in getattr(reader.storage, "storages", ()):
        storage.connections[:] = [
            each._replace(ext=known.get((each.topic, each.msgtype), each.ext)) for each in storage.connections
        ]
    opened: Reader = reader
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
