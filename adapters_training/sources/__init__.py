"""Training data of many kinds as one thing: a `Sample`, a conversation with at most one image.

`conversations` reads ShareGPT and LLaVA files, `shards` the simulator's frames, `bags` runs of the robot, `lerobot`
LeRobot's data sets; `mixture` finds out which is which, reports what is bad and decides in which order an epoch goes
through them.
"""

from __future__ import annotations

import os
import random
import tempfile
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

    `index` counts the camera's frames from 0; `stamp_ns` is its time, in nanoseconds. `instruction` and `answer` are
    what was recorded with it; empty: nothing was.
    """

    index: int
    stamp_ns: int
    jpeg: Callable[[], bytes]
    """Returns the frame as a robot would send it up; to be called before the next shot is taken.

    Raises ValueError, in one sentence, where it cannot be read.
    """
    instruction: str = ""
    answer: str = ""


@dataclass(frozen=True)
class LeftOut:
    """Something that is not used, and why; `index` names the frame where it is one."""

    reason: str
    index: int | None = None


class AnsweredFrames:
    """A source of recorded frames, each with a question and an answer; `add` them, then `flush`.

    Their JPEGs wait in a temporary file, so that long recordings fill no memory.
    """

    has_images = True

    def __init__(self) -> None:
        self.problems = list[str]()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the source
        self._places = list[tuple[int, int]]()
        self._said = list[tuple[str, str, str]]()

    @property
    def blocks(self) -> list[int]:
        """The number of frames: they are one block."""
        return [len(self._said)]

    def add(self, jpeg: bytes, where: str, prompt: str, answer: str) -> None:
        """Append a frame; `where` names it in messages."""
        self._places.append((self._file.tell(), len(jpeg)))
        self._file.write(jpeg)
        self._said.append((where, prompt, answer))

    def flush(self) -> None:
        """Make what was added readable."""
        self._file.flush()

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return frame `index` with what was asked and answered about it."""
        where, prompt, answer = self._said[index]
        begin, length = self._places[index]
        # Not seek and read: processes that load data share one file position.
        jpeg = os.pread(self._file.fileno(), length, begin)
        return Sample((Turn(USER, prompt), Turn(ASSISTANT, answer)), where, jpeg)


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
