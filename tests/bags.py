"""Small bags for tests, written the way other software writes them, and the messages in them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from rosbags.rosbag2 import StoragePlugin, Writer
from ruamel.yaml import YAML

from tests.models import frame
from vlm_nav_evaluation.bags import files

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
TYPES = files.typestore()
_CHANNELS = {"rgb8": "rgb", "bgr8": "bgr"}


def stamp_of(index: int, hz: float = 10.0) -> int:
    """When frame `index` was received."""
    return START_NS + round(index * 1e9 / hz)


def make(kind: str, /, **fields: Any) -> Any:
    """Return a message with zeros for every field that is not given."""
    return files.make(TYPES, kind, **fields)


def header(stamp_ns: int, frame_id: str = "front") -> Any:
    time = make("builtin_interfaces/msg/Time", sec=stamp_ns // SECOND_NS, nanosec=stamp_ns % SECOND_NS)
    return make("std_msgs/msg/Header", stamp=time, frame_id=frame_id)


def text(words: str) -> Any:
    return make("std_msgs/msg/String", data=words)


def jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(".jpg", pixels[..., ::-1])[1])


def compressed(data: bytes, stamp_ns: int, kind: str = "jpeg") -> Any:
    return make(
        "sensor_msgs/msg/CompressedImage", header=header(stamp_ns), format=kind, data=np.frombuffer(data, np.uint8)
    )


def raw(data: bytes, encoding: str, height: int, width: int, step: int, stamp_ns: int = START_NS) -> Any:
    return make(
        "sensor_msgs/msg/Image",
        header=header(stamp_ns),
        height=height,
        width=width,
        encoding=encoding,
        step=step,
        data=np.frombuffer(data, np.uint8),
    )


def plain(encoding: str, colour: tuple[int, int, int], stamp_ns: int = START_NS) -> Any:
    """Return a raw image of one colour (RGB), 48 high and 64 wide."""
    values = dict(zip("rgb", colour, strict=True))
    pixel = bytes(values[channel] for channel in _CHANNELS[encoding])
    return raw(pixel * 64 * 48, encoding, 48, 64, 3 * 64, stamp_ns)


def odometry(stamp_ns: int, x: float = 0.0, y: float = 0.0, yaw: float = 0.0) -> Any:
    turn = make("geometry_msgs/msg/Quaternion", z=math.sin(yaw / 2), w=math.cos(yaw / 2))
    pose = make("geometry_msgs/msg/Pose", position=make("geometry_msgs/msg/Point", x=x, y=y), orientation=turn)
    return make(
        "nav_msgs/msg/Odometry",
        header=header(stamp_ns, "odom"),
        child_frame_id="base_link",
        pose=make("geometry_msgs/msg/PoseWithCovariance", pose=pose),
    )


def write(folder: Path, messages: Sequence[tuple[str, int, Any]], plugin: StoragePlugin = StoragePlugin.MCAP) -> Path:
    """Write (topic, receive time, message) into a new bag and return its folder."""
    connections: dict[str, Any] = {}
    with Writer(folder, version=8, storage_plugin=plugin) as writer:
        for topic, stamp_ns, message in messages:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=TYPES)
            writer.write(connections[topic], stamp_ns, TYPES.serialize_cdr(message, kind))
    return folder


def camera(count: int, topic: str = "/camera/image/compressed", hz: float = 10.0) -> list[tuple[str, int, Any]]:
    """Return random frames, each another."""
    return [(topic, stamp_of(index, hz), compressed(jpeg(frame(index)), stamp_of(index, hz))) for index in range(count)]


def told(words: str, stamp_ns: int = START_NS, topic: str = "/instruction") -> tuple[str, int, Any]:
    """Return an instruction."""
    return topic, stamp_ns, text(words)


def as_humble(folder: Path) -> Path:
    """Turn an sqlite3 bag into what Humble writes: an older schema, and no message definitions in it."""
    (file,) = folder.glob("*.db3")
    with sqlite3.connect(file) as database:
        for name in ("schema", "metadata", "message_definitions"):
            database.execute(f"DROP TABLE {name}")
    database.close()
    note, yaml = folder / "metadata.yaml", YAML(typ="safe")
    information = yaml.load(note.read_text())["rosbag2_bagfile_information"]
    information["version"] = 5
    for name in ("ros_distro", "custom_data"):
        information.pop(name, None)
    for topic in information["topics_with_message_count"]:
        topic["topic_metadata"].pop("type_description_hash", None)
    with note.open("w") as sink:
        yaml.dump({"rosbag2_bagfile_information": information}, sink)
    return folder
