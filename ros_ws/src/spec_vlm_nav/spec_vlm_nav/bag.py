"""Writes and reads mcap bags that `ros2 bag` understands, our own message types included. Needs no ROS."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rosbags.highlevel import AnyReader
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from spec_vlm_nav.graph import PROJECT

INTERFACES = PROJECT / "ros_ws" / "src"
_OWN = (
    ("spec_vlm_nav_interfaces", ("ActionStatus", "DecodingStats", "NavigationAction")),
    (
        "unitree_api",
        (
            "RequestIdentity", "RequestLease", "RequestPolicy", "RequestHeader", "Request",
            "ResponseStatus", "ResponseHeader", "Response",
        ),
    ),
)  # fmt: skip


def typestore() -> Any:
    """Return Jazzy's message types and ours, read from the workspace's `.msg` files."""
    store = get_typestore(Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for package, names in _OWN:
        for name in names:
            text = (INTERFACES / package / "msg" / f"{name}.msg").read_text(encoding="utf-8")
            types.update(get_types_from_msg(text, f"{package}/msg/{name}"))
    store.register(types)
    return store


class BagWriter:
    """Takes serialized messages from any thread. An existing bag in `folder` is replaced."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._types = typestore()
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
                self._connections[topic] = self._writer.add_connection(topic, kind, typestore=self._types)
            self._writer.write(self._connections[topic], stamp_ns, payload)

    def close(self) -> None:
        """Write the index and close the file."""
        with self._lock:
            if self._open:
                self._open = False
                self._writer.close()


def read(folder: Path, kinds: Collection[str] = ()) -> Iterator[tuple[str, int, Any]]:
    """Yield (topic, receive time in ns, message) in order of time; only messages of the types `kinds`, if any is named.

    Raises ValueError if `folder` holds no bag.
    """
    if not (folder / "metadata.yaml").exists():
        raise ValueError(f"{folder} is no bag: it has no metadata.yaml")
    # Bags of Humble do not say what their message types look like.
    with AnyReader([folder], default_typestore=typestore()) as reader:
        chosen = [connection for connection in reader.connections if not kinds or connection.msgtype in kinds]
        if not chosen:
            return
        for connection, stamp_ns, raw in reader.messages(chosen):
            yield connection.topic, stamp_ns, reader.deserialize(raw, connection.msgtype)
