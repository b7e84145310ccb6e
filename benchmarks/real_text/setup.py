"""How much is done, and where everything lies."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from adapters_training.files import replacing
from benchmarks.real_text import corpus


class Sizes(NamedTuple):
    """How much of everything; `FULL` is what docs/benchmarks.md reports."""

    prompts: int
    """That are timed."""
    max_tokens: int
    """Of an answer that is timed."""
    answers: int
    """Questions that the target answers, to learn from."""
    held_answers: int
    answer_tokens: int
    draft_epochs: float
    exit_steps: int
    """Of eight conversations."""
    fed_epochs: float
    verdicts: int
    """Prompts on which exits judge drafts."""
    listed: int
    """Prompts whose answers make the exits' short list."""


FULL = Sizes(100, 32, 1200, 120, 80, 1.0, 60, 1.0, 40, 60)
QUICK = Sizes(2, 8, 6, 3, 8, 0.0, 2, 0.0, 2, 2)
QUICK_STEPS = 2
"""Of a training; the epochs of `QUICK` are not read."""


@dataclass(frozen=True)
class Setup:
    """Where everything lies, and how much of it there is."""

    out: Path
    sizes: Sizes = FULL
    threads: int = 1
    timed: int = 0
    """So many prompts are timed; 0: all of `sizes`."""

    @property
    def quick(self) -> bool:
        """Whether this is a look that makes no figure worth keeping."""
        return self.sizes is QUICK

    def check(self) -> None:
        """Claim the folder. Raises ValueError for one that holds other sizes: a look is never mixed with figures."""
        path = self.out / "sizes.json"
        if not path.exists():
            write_json(path, self.sizes._asdict())
        elif json.loads(path.read_text(encoding="utf-8")) != self.sizes._asdict():
            raise ValueError(
                f"--out {self.out} was begun with other sizes (--quick?); choose another folder or delete it"
            )

    @property
    def target(self) -> Path:
        """The folder of the converted target."""
        return self.out / "target"

    @property
    def corpus(self) -> Path:
        """The folder of conversations and prompts."""
        return self.out / "corpus"

    @property
    def prompts(self) -> Path:
        """The prompts that are timed."""
        return self.corpus / corpus.PROMPTS

    @property
    def answers(self) -> Path:
        """The target's own answers, to learn from."""
        return self.out / "answers.jsonl"

    @property
    def held_answers(self) -> Path:
        """The target's own answers, to measure on."""
        return self.out / "answers_held_out.jsonl"

    @property
    def draft(self) -> Path:
        """The folder of the distilled draft."""
        return self.out / "draft"

    @property
    def exits(self) -> Path:
        """The folder of exits."""
        return self.out / "exits"

    @property
    def fed_head(self) -> Path:
        """The folder of the fed head."""
        return self.out / "fed_head"

    @property
    def speed(self) -> Path:
        """What was timed."""
        return self.out / "speed.json"


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file that is whole at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
