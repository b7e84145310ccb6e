"""What a training frame is, on disk: msgpack shards of labelled camera frames.

A shard file `seeds-A-B.msgpack` holds the frames of scenes A..B-1; a frame holds one JPEG, what stands in it, and for
several objects what the oracle does. Words are not stored: they are drawn anew every epoch (`wording.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

CELLS = 8
"""Image tokens along each side of a 224 px frame (patch 14, merge 2)."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One visible object: where it stands (`side` as in `simulation.ground_truth`) and how far, metres."""

    colour: str
    object_class: str
    side: str
    distance: float


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One instruction's truth for a frame: the target, whether it is visible, and the oracle's decision."""

    colour: str
    object_class: str
    seen: Seen | None
    action: str
    reason: str
    blocker: str = ""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One labelled frame. Cell arrays are CELLS x CELLS bytes, row by row: 0 = background, else class or colour index
    + 1, and distance in decimetres (capped at 255)."""

    jpeg: bytes
    cell_class: bytes
    cell_colour: bytes
    cell_distance: bytes
    seen: list[Seen]
    tasks: list[Task]


_decoder = msgspec.msgpack.Decoder(list[Frame])


def write_shard(path: Path, frames: list[Frame]) -> None:
    """Write a shard atomically: a killed run leaves no half file."""
    temporary = path.with_suffix(".part")
    temporary.write_bytes(msgspec.msgpack.encode(frames))
    temporary.replace(path)


def read_shard(path: Path) -> list[Frame]:
    """Read one shard."""
    return _decoder.decode(path.read_bytes())


def shards(folder: Path) -> list[Path]:
    """Return the finished shards of a folder in seed order."""
    return sorted(folder.glob("seeds-*.msgpack"))


def read_frames(folder: Path, limit: int | None = None) -> Iterator[Frame]:
    """Iterate over the frames of a folder, at most `limit`."""
    count = 0
    for path in shards(folder):
        for frame in read_shard(path):
            if limit is not None and count >= limit:
                return
            count += 1
            yield frame
