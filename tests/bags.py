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
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from ruamel.yaml import YAML

from tests.models import frame
from vlm_nav_evaluation.bags import files

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
TYPES = files.typestore()
_EVER = QosTime(9223372036, 854775807)
BEST_EFFORT = Qos(
    QosHistory.KEEP_LAST, 5, QosReliability.BEST_EFFORT, QosDurability.VOLATILE, _EVER, _EVER, QosLiveliness.AUTOMATIC,
    _EVER, False,
)  # fmt: skip
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


def rerecorded(
    bag: Path, folder: Path, plugin: StoragePlugin, version: int, mode: CompressionMode | None = None, parts: int = 1
) -> Path:
    """Write a bag anew as rosbag2's recorder would: split, compressed, and with another QoS in its metadata.

    `version`: of its metadata, 8 or 9.
    """
    folder.mkdir()
    with files.BagReader(bag) as source:
        kinds = {topic.name: topic.kind for topic in source.topics.values()}
        messages = list(source.messages())
    yaml, whole = YAML(typ="safe"), dict[str, Any]()
    for part in range(parts):
        connections: dict[str, Any] = {}
        writer = Writer(folder.parent / f"{folder.name}_{part}", version=version, storage_plugin=plugin)
        if mode is not None:
            writer.set_compression(mode, CompressionFormat.ZSTD)
        with writer:
            for topic, stamp_ns, raw in messages[part * len(messages) // parts : (part + 1) * len(messages) // parts]:
                if topic not in connections:
                    qos = {"typestore": TYPES, "offered_qos_profiles": [BEST_EFFORT]}
                    connections[topic] = writer.add_connection(topic, kinds[topic], **qos)
                writer.write(connections[topic], stamp_ns, raw)
        made = yaml.load((writer.path / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
        for file in (writer.path / name for name in made["relative_file_paths"]):
            file.rename(folder / file.name)
        for name in ("relative_file_paths", "files", "message_count", "topics_with_message_count"):
            whole[name] = whole[name] + made[name] if name in whole else made[name]
        whole = made | whole
    topics = {each["topic_metadata"]["name"]: each for each in whole["topics_with_message_count"]}
    for topic, each in topics.items():
        each["message_count"] = sum(name == topic for name, _, _ in messages)
        each["topic_metadata"]["offered_qos_profiles"] = [] if version > 8 else ""
    whole["topics_with_message_count"] = list(topics.values())
    with (folder / "metadata.yaml").open("w") as sink:
        yaml.dump({"rosbag2_bagfile_information": whole}, sink)
    return folder


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
