"""Training data of many kinds as one thing: a `Sample`, a conversation with at most one image.

`conversations` reads ShareGPT and LLaVA files, `shards` the simulator's frames, `bags` runs of the robot, `lerobot`
LeRobot's data sets; `mixture` finds out which is which, reports what is bad and decides in which order an epoch goes
through them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"


class BadRecord(ValueError):
    """A record that cannot be used; the text names its place and the reason."""


@dataclass(frozen=True)
class Turn:
    """The text of one side: `role` is 'user', 'assistant' or 'system'."""

    role: str
    text: str


@dataclass(frozen=True)
class Sample:
    """One conversation: an optional system turn, then user and assistant in turns, ending with the assistant.

    `image` belongs to the first user turn: the path of an image, or a JPEG. `where` names the record, for messages.
    """

    turns: tuple[Turn, ...]
    where: str
    image: Path | bytes | None = None


@dataclass(frozen=True)
class Shot:
    """One camera frame of recorded data, in order of time, not decoded yet.

    `index` counts the camera's frames from 0; `stamp_ns` is its time, in nanoseconds. `instruction` is what was
    recorded with it; empty: nothing was.
    """

    index: int
    stamp_ns: int
    jpeg: Callable[[], bytes]
    """Returns the frame as a robot would send it up; to be called before the next shot is taken.

    Raises ValueError, in one sentence, where it cannot be read.
    """
    instruction: str = ""


@dataclass(frozen=True)
class LeftOut:
    """Something that is not used, and why; `index` names the frame where it is one."""

    reason: str
    index: int | None = None


class Source(Protocol):
    """Records of one file or folder, each read when it is asked for.

    `problems` are the records that were left out, a sentence each; `blocks` are the lengths of runs of records that are
    cheap to read together; their sum is the number of records.
    """

    problems: list[str]
    has_images: bool

    @property
    def blocks(self) -> list[int]: ...

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return record `index`; what it leaves to chance is sampled from `rng`. Raises BadRecord."""
        ...
