"""Writes mcap bags that `ros2 bag` reads, our own message types included, and reads any rosbag2. Needs no ROS."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from adapters_training.sources import rosbag2
from adapters_training.sources.rosbag2 import FOXGLOVE_VIDEO, GO2_VIDEO

INTERFACES = Path(__file__).resolve().parents[1] / "interfaces"
VIDEOS = {
    GO2_VIDEO: "uint64 time_frame\nuint8[] video720p\nuint8[] video360p\nuint8[] video180p\n",
    FOXGLOVE_VIDEO: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n",
}
"""Messages of video streams, as Humble's bags do not carry their definitions."""


def typestore() -> Any:
    """Return Jazzy's message types and ours, read from the workspace's `.msg` files."""
    store = get_typestore(Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for package in ("spec_vlm_nav_interfaces", "unitree_api", "unitree_go"):
        for file in (INTERFACES / package).glob("*.msg"):
            types.update(get_types_from_msg(file.read_text(encoding="utf-8"), f"{package}/msg/{file.stem}"))
    for kind, definition in VIDEOS.items():
        types.update(get_types_from_msg(definition, kind))
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


def nanoseconds(stamp: Any) -> int:
    """Return a builtin_interfaces/Time in nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def header_stamp(message: Any) -> int:
    """Return the stamp in a message's header, in nanoseconds."""
    return nanoseconds(message.header.stamp)


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


class BagReader(rosbag2.BagReader):
    """`rosbag2.BagReader` that also knows this project's messages and those of robots' video streams."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, typestore())


def read(folder: Path, kinds: Collection[str] = ()) -> Iterator[tuple[str, int, Any]]:
    """Yield (topic, receive time in ns, message) in order of time; only messages of the types `kinds`, if any is named.

    Raises ValueError if `folder` holds no bag, or a damaged one.
    """
    with BagReader(folder) as bag:
        yield from bag.decoded([topic.name for topic in bag.topics.values() if not kinds or topic.kind in kinds])
