"""What a training frame is, on disk: msgpack shards of labelled camera frames.

A shard file `seeds-A-B.msgpack` holds the frames of scenes A..B-1; a frame holds one JPEG, what stands in it, and for
several objects what the oracle does. Words are not stored: they are sampled anew every epoch (`wording.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from adapters_training.files import replacing

CELLS = 8
"""Image tokens along each side of a 224 px frame (patch 14, merge 2)."""

WINDOW = 4
"""Shards that are in memory at a time."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One visible object: where it stands (`side` as in `vlm_nav_simulation.ground_truth`), how far, metres, and how
    many pixels of a 224-pixel frame show it (0: nobody counted, frames of earlier versions)."""

    colour: str
    object_class: str
    side: str
    distance: float
    pixels: int = 0


class Door(msgspec.Struct, frozen=True, array_like=True):
    """A doorway in view: where it is (`side` as of `Seen`) and how far, metres."""

    side: str
    distance: float


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One instruction's truth for a frame: the object that is right, whether it is visible, the teacher's decision, and
    the actions done before, oldest first, as texts. Where a target was asked, `prompt` and `answer` hold the words.

    `query` is the instruction; empty: "find the COLOUR CLASS". `memory` are the lines of a
    `speculation.language.search_memory`.
    """

    colour: str
    object_class: str
    seen: Seen | None
    action: str
    reason: str
    blocker: str = ""
    done: tuple[str, ...] = ()
    prompt: str = ""
    answer: str = ""
    query: str = ""
    memory: tuple[str, ...] = ()


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One labelled frame. Cell arrays are CELLS x CELLS bytes, row by row: 0 = background, else class or colour index
    + 1, and distance in decimetres (capped at 255). `free` is how far it is to the nearest thing, whatever it is, in
    each column of cells: CELLS bytes, decimetres, at least 1; empty where nobody measured it (frames of earlier
    versions)."""

    jpeg: bytes
    cell_class: bytes
    cell_colour: bytes
    cell_distance: bytes
    seen: list[Seen]
    tasks: list[Task]
    doors: tuple[Door, ...] = ()
    free: bytes = b""


_TEACHING = ("explore", "door", "return", "not here")
"""Reasons of a teacher that does not see the object and does more than to turn on."""

_decoder = msgspec.msgpack.Decoder(list[Frame])


def write_shard(path: Path, frames: list[Frame]) -> None:
    """Write a shard atomically: a killed run leaves no half file."""
    with replacing(path) as file:
        file.write_bytes(msgspec.msgpack.encode(frames))


def read_shard(path: Path) -> list[Frame]:
    """Read one shard. Raises ValueError for a file that is none."""
    try:
        return _decoder.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(
            f"{path} is no shard of training frames ({error}); delete it and make the data again"
        ) from None


def teaches(frame: Frame) -> bool:
    """Return whether a frame teaches more than to turn on."""
    return bool(frame.seen) or any(task.reason in _TEACHING for task in frame.tasks)


def shards(folder: Path) -> list[Path]:
    """Return the finished shards of a folder in seed order."""
    return sorted(folder.glob("seeds-*.msgpack"))


def read_frames(folder: Path) -> Iterator[Frame]:
    """Iterate over the frames of a folder."""
    for path in shards(folder):
        yield from read_shard(path)
