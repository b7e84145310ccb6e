"""Video streams in bags: the Go2's front camera and Foxglove's CompressedVideo, encoded here as robots do."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin

from adapters_training.sources import LeftOut
from adapters_training.sources.rosbag2 import FOXGLOVE_VIDEO, GO2_VIDEO
from speculation.frames import decode_jpeg
from tests import bags
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection
from vlm_nav_evaluation.bags.playback import items

av = pytest.importorskip("av")
GROUP = 10
ASKED = Selection(instruction="find the red ball")


def encoded(count: int, width: int = 96, height: int = 64) -> list[bytes]:
    """Return frames in H.264, a key frame with its parameters every ten; frame i is grey, 8 i bright."""
    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = width, height, "yuv420p", Fraction(1, 30)
    keys = f"keyint={GROUP}:min-keyint={GROUP}:scenecut=0:bframes=0:repeat-headers=1"
    codec.options = {"preset": "ultrafast", "tune": "zerolatency", "x264-params": keys}
    packets = []
    for index in range(count):
        picture = av.VideoFrame.from_ndarray(np.full((height, width, 3), 8 * index, np.uint8), format="rgb24")
        picture.pts = index
        packets += codec.encode(picture)
    return [bytes(packet) for packet in [*packets, *codec.encode(None)]]


def go2(data: bytes, index: int, field: str = "video720p") -> Any:
    return bags.make(GO2_VIDEO, time_frame=index, **{field: np.frombuffer(data, np.uint8)})


def foxglove(data: bytes, index: int, form: str = "h264") -> Any:
    stamp = bags.header(bags.stamp_of(index)).stamp
    return bags.make(FOXGLOVE_VIDEO, timestamp=stamp, frame_id="front", format=form, data=np.frombuffer(data, np.uint8))


def brightness(jpeg: bytes) -> int:
    return round(float(decode_jpeg(jpeg).mean()) / 8)


def shown(path: Path, selection: Selection = ASKED) -> tuple[list[tuple[int, int]], list[str]]:
    """Return index and brightness of each frame, and what is left out; a replay and a play must agree."""
    with FrameSource(path, selection) as source:
        found = list(source)
    frames = [(item.index, brightness(item.jpeg)) for item in found if isinstance(item, BagFrame)]
    problems = [item.reason for item in found if isinstance(item, LeftOut)]
    if selection == ASKED:
        left_out = list[LeftOut]()
        played = [brightness(item.payload) for item in items(path, left_out=left_out.append) if item.is_frame]
        assert played == [bright for _, bright in frames] and [each.reason for each in left_out] == problems
    return frames, problems


def record(path: Path, make: Any, kept: range | list[int], plugin: StoragePlugin = StoragePlugin.MCAP) -> Path:
    packets = encoded(30)
    messages = [("/frontvideostream", bags.stamp_of(index), make(packets[index], index)) for index in kept]
    messages.insert(1, ("/odom", bags.stamp_of(0), bags.odometry(0)))
    return bags.write(path, messages, plugin)


@pytest.mark.parametrize("make", [go2, foxglove])
@pytest.mark.parametrize("plugin", [StoragePlugin.MCAP, StoragePlugin.SQLITE3])
def test_a_stream_is_shown_frame_by_frame(tmp_path: Path, make: Any, plugin: StoragePlugin) -> None:
    path = record(tmp_path / "bag", make, range(30), plugin)
    if plugin is StoragePlugin.SQLITE3:
        bags.as_humble(path)
    frames, problems = shown(path)
    assert frames == [(index, index) for index in range(30)] and not problems
    assert [index for index, _ in shown(path, Selection(instruction="find the red ball", fps=1.0))[0]] == [0, 9, 19, 29]
    first = next(item for item in items(path) if item.is_frame)
    assert first.frame_id == ("front" if make is foxglove else "") and first.stamp_ns == bags.stamp_of(0)


def test_frames_before_the_first_key_frame_are_counted(tmp_path: Path) -> None:
    frames, problems = shown(record(tmp_path / "bag", go2, range(4, 30)))
    assert frames == [(index - 4, index) for index in range(10, 30)]
    assert problems == ["the first 6 messages of the video come before its first key frame and show nothing"]
    frames, problems = shown(record(tmp_path / "none", go2, range(1, 9)))
    assert not frames
    assert problems == ["none of the 8 messages of the video decodes to a key frame: " + problems[0].partition(": ")[2]]


@pytest.mark.parametrize("lost", [[5, 6, 7], [29], [10]])
def test_after_lost_messages_nothing_is_shown_before_the_next_key_frame(tmp_path: Path, lost: list[int]) -> None:
    kept = [index for index in range(30) if index not in lost]
    frames, problems = shown(record(tmp_path / "bag", go2, kept))
    until = (lost[0] // GROUP + 1) * GROUP
    good = [index for index in range(30) if not lost[0] <= index < until]
    assert [bright for _, bright in frames] == good
    assert problems == ["video: it comes after damage and before the next key frame"] * (len(kept) - len(good))


def test_without_pyav_the_sentence_tells_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(tmp_path / "bag", go2, range(3))
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr("speculation.optional_packages.find_spec", lambda name: None)
    for opened in (lambda: FrameSource(path, ASKED), lambda: next(items(path))):
        with pytest.raises(
            ValueError, match=r"/frontvideostream is a video stream: av not found: pip install .*\[camera\]"
        ):
            opened()
