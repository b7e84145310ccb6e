"""Training data of many kinds as one thing: a `Sample`, a conversation with at most one image.

`conversations` reads ShareGPT and LLaVA files, `shards` the simulator's frames, `bags` runs of the robot; `mixture`
finds out which is which, reports what is bad and decides in which order an epoch goes through them.
"""

from __future__ import annotations

import random
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


class Source(Protocol):
    """Records of one file or folder, each read when it is asked for.

    `problems` are the records that were left out, a sentence each; `blocks` are the lengths of runs of records that are
    cheap to read together; their sum is the number of records.
    """

    problems: list[str]
    blocks: list[int]
    has_images: bool

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return record `index`; what it leaves to chance is sampled from `rng`. Raises BadRecord."""
        ...
