"""Bags as recorders leave them: killed, cut off, split, compressed, of other folders and of ROS 1."""

from __future__ import annotations

import os
import random
import shutil
import struct
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


@pytest.fixture(scope="module", params=["plain", "chunks in zstd"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred frames, several chunks of about a mebibyte."""
    folder = tmp_path_factory.mktemp("whole") / "bag"
    mode = CompressionMode.STORAGE if request.param == "chunks in zstd" else None
    record(folder, MANY, mode)
    return folder


@pytest.mark.parametrize("share", [0.1, 0.6, 0.999])
@pytest.mark.parametrize("form", ["file", "folder", "killed"])
def test_of_a_bag_that_was_cut_off_all_that_is_whole_is_read(
    whole: Path, tmp_path: Path, share: float, form: str
) -> None:
    folder = tmp_path / "walk"
    shutil.copytree(whole, folder)
    file = storage(folder)
    os.truncate(file, int(file.stat().st_size * share))
    if form == "killed":
        (folder / "metadata.yaml").unlink()
    found, problems = stamps(file if form == "file" else folder)
    assert found == [bags.stamp_of(index) for index in range(len(found))]
    least = FRAMES * share - (14 if "zstd" in whole.parent.name else 9)
    assert least <= len(found) <= FRAMES
    assert f"{file} was not closed or is cut off: {len(found)} whole messages over" in problems[0]
    assert problems[0].endswith(f"; `mcap recover {file} -o whole.mcap` makes a file of them that other tools read")


def test_of_a_database_that_is_cut_off_the_way_to_recover_it_is_told(tmp_path: Path) -> None:
    folder = bags.write(tmp_path / "my walk", MANY[:20], StoragePlugin.SQLITE3)
    file = storage(folder)
    os.truncate(file, 2000)
    with pytest.raises(ValueError, match="cannot be read: ") as caught:
        stamps(folder)
    assert f"`sqlite3 '{file}' \".recover\" | sqlite3 whole.db3`" in str(caught.value)


def test_messages_that_lie_in_no_chunk_are_read_too(tmp_path: Path) -> None:
    """As `ros2 bag record --storage-preset-profile fastwrite` writes them."""
    begin, records, _ = records_of(bags.write(tmp_path / "bag", MANY[:20]))
    file = tmp_path / "fast.mcap"
    file.write_bytes(begin + records[:-100])
    found, problems = stamps(file)
    assert found == [bags.stamp_of(index) for index in range(19)]
    assert "19 whole messages over 1.8 s" in problems[0]


def records_of(bag: Path) -> tuple[bytes, bytes, bytes]:
    """Return the bytes of an .mcap before its one chunk, the records in it, and what the chunk has before these."""
    data = storage(bag).read_bytes()
    begin = 8 + 9 + struct.unpack_from("<Q", data, 9)[0]
    code, length = struct.unpack_from("<BQ", data, begin)
    assert code == 6
    inside = begin + 9 + 28 + 4 + 8
    return data[:begin], data[inside : begin + 9 + length], data[begin:inside]


def record_of(code: int, content: bytes) -> bytes:
    return struct.pack("<BQ", code, len(content)) + content


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        record_of(5, b"short"),
        record_of(3, b"\x07\0\xff\xff\xff\xff"),
        record_of(4, b"\x07\0\0\0\x01\0\0\0\xff\0\0\0\0"),
        record_of(5, struct.pack("<HIQQ", 77, 0, 1, 1) + b"of no channel"),
    ],
)
def test_a_record_that_is_none_costs_no_other(tmp_path: Path, bad: bytes, chunked: bool) -> None:
    start, records, head = records_of(bags.write(tmp_path / "bag", MANY[:20]))
    file = tmp_path / "bad.mcap"
    records += bad
    chunk = head[:1] + struct.pack("<Q", len(head) - 9 + len(records)) + head[9:33] + bytes(4) + head[37:] + records
    file.write_bytes(start + (chunk if chunked else records) + record_of(15, bytes(4)))
    found, problems = stamps(file)
    assert found == [bags.stamp_of(index) for index in range(20)]
    assert "20 whole messages over 1.9 s are read" in problems[0]


def test_where_nothing_is_whole_that_is_the_sentence(tmp_path: Path) -> None:
    folder = bags.write(tmp_path / "bag", MANY[:2])
    file = storage(folder)
    for size in (0, 8, 60):
        os.truncate(file, size) if size < file.stat().st_size else file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(ValueError, match=f"bag {file} cannot be read: it ") as caught:
            stamps(folder)
        assert "\n" not in str(caught.value)


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


def test_other_paths_of_the_same_bag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bags.write(tmp_path / "walk", MANY[:3])
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(folder)
    for path in (f"{folder}/", "~/walk", f"{folder}/metadata.yaml", str(storage(folder)), ".", "../walk"):
        assert len(stamps(Path(path))[0]) == 3


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
