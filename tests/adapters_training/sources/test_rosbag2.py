"""Bags as recorders leave them: killed, cut off, split, compressed, of other folders and of ROS 1."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

from adapters_training.sources.rosbag2 import BagReader
from tests import bags

COMPRESSED = "sensor_msgs/msg/CompressedImage"
FRAMES = 200
NOISE = random.Random(0)
MANY = [
    ("/camera", bags.stamp_of(index), bags.compressed(NOISE.randbytes(20_000), bags.stamp_of(index)))
    for index in range(FRAMES)
]


def stamps(path: Path) -> tuple[list[int], list[str]]:
    """Return when each message came, each of which decodes, and what is lost."""
    with BagReader(path) as bag:
        topic = next(iter(bag.topics))
        return [stamp for _, stamp, message in bag.decoded([topic]) if len(message.data) > 100], bag.problems


def storage(folder: Path) -> Path:
    (file,) = [file for file in folder.iterdir() if file.suffix in (".mcap", ".db3")]
    return file


def record(folder: Path, messages: Sequence[Any], mode: CompressionMode | None) -> None:
    writer = Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP)
    if mode is not None:
        writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        camera = writer.add_connection("/camera", COMPRESSED, typestore=bags.TYPES)
        for _, stamp_ns, message in messages:
            writer.write(camera, stamp_ns, bags.TYPES.serialize_cdr(message, COMPRESSED))


@pytest.mark.parametrize(
    ("plugin", "command"),
    [
        (StoragePlugin.MCAP, "`mcap recover {} -o whole.mcap`"),
        (StoragePlugin.SQLITE3, '`sqlite3 {} ".recover" | sqlite3 whole.db3`'),
    ],
)
@pytest.mark.parametrize("size", [0, 2000])
def test_a_bag_that_was_cut_off_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, plugin: StoragePlugin, command: str, size: int
) -> None:
    folder = bags.write(tmp_path / "my walk", MANY[:20], plugin)
    file = storage(folder)
    os.truncate(file, size)
    for path in (folder, file):
        with pytest.raises(ValueError, match=f"bag {file} cannot be read: ") as caught:
            list(stamps(path))
        assert command.format(f"'{file}'") in str(caught.value) and "\n" not in str(caught.value)


def test_what_metadata_alone_could_tell_is_named_where_it_does_not(tmp_path: Path) -> None:
    record(tmp_path / "walk", MANY[:20], CompressionMode.FILE)
    (file,) = (tmp_path / "walk").glob("*.zstd")
    for size, why in ((2000, "cannot be read: Compressed file ended before"), (0, "cannot be read: ")):
        os.truncate(file, size)
        with pytest.raises(ValueError, match=f"^bag {tmp_path / 'walk'} {why}"):
            BagReader(tmp_path / "walk")
    file.unlink()
    with pytest.raises(
        ValueError, match=r"is no bag: it lacks the files that its metadata.yaml lists, walk.mcap.zstd$"
    ):
        BagReader(tmp_path / "walk")


def test_what_a_killed_recorder_left_in_sqlites_journal_is_not_passed_over(tmp_path: Path) -> None:
    file = storage(bags.write(tmp_path / "my walk", MANY[:20], StoragePlugin.SQLITE3))
    file.with_name(file.name + "-wal").write_bytes(b"something")
    for path in (file, file.parent):
        with pytest.raises(ValueError, match=r"a part of it is in a journal; `sqlite3 '.*' 'PRAGMA integrity_check'`"):
            BagReader(path)


def split(folder: Path) -> Path:
    """Make one bag of eleven files, as `ros2 bag record --max-bag-duration` does, and no metadata."""
    folder.mkdir()
    for part in range(11):
        record(folder.parent / f"part_{part}", MANY[2 * part : 2 * part + 2], None)
        (file,) = (folder.parent / f"part_{part}").glob("*.mcap*")
        file.rename(folder / f"walk_{part}{''.join(file.suffixes)}")
    return folder


def test_a_split_bag_without_metadata_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    found, problems = stamps(split(tmp_path / "walk"))
    assert found == [bags.stamp_of(index) for index in range(22)] and not problems


@pytest.mark.parametrize("mode", [CompressionMode.FILE, CompressionMode.MESSAGE, CompressionMode.STORAGE])
def test_a_bag_that_is_compressed_is_read(tmp_path: Path, mode: CompressionMode) -> None:
    record(tmp_path / "bag", MANY[:20], mode)
    found, problems = stamps(tmp_path / "bag")
    assert found == [bags.stamp_of(index) for index in range(20)] and not problems


def test_a_damaged_file_of_a_split_bag_leaves_the_others(tmp_path: Path) -> None:
    folder = split(tmp_path / "walk")
    (folder / "walk_4.mcap").write_bytes(b"")
    found, problems = stamps(folder)
    assert found == [bags.stamp_of(index) for index in range(22) if index not in (8, 9)]
    (problem,) = problems
    assert "walk_4.mcap cannot be read" in problem


@pytest.mark.parametrize("name", ["walk.bag", "walk"])
def test_a_bag_of_ros_1_is_named_with_its_remedy(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "walk.bag" if name == "walk" else tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"#ROSBAG V2.0\n" + bytes(4096))
    remedy = f"'rosbags-convert --src {file} --dst {file.with_suffix('')}'"
    with pytest.raises(ValueError, match="is a bag of ROS 1") as caught:
        BagReader(tmp_path / name)
    assert remedy in str(caught.value)


def test_a_folder_of_bags_lists_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        bags.write(tmp_path / name, MANY[:1])
    (tmp_path / "notes").mkdir()
    with pytest.raises(ValueError, match=r"is no bag: it holds the bags a, b; name one$"):
        BagReader(tmp_path)
    loose = tmp_path / "loose"
    loose.mkdir()
    for name in ("a", "b"):
        storage(tmp_path / name).rename(loose / f"{name}.mcap")
    with pytest.raises(ValueError, match=r"holds several bags; name one of a.mcap, b.mcap$"):
        BagReader(loose)
