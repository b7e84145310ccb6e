"""Where a training's loss goes: a loss that rises is warned of, one that is no number ends the training.

What is compared are means of WINDOW steps, so that a step with hard frames is no alarm: the last ones with the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WINDOW = 20
"""Steps."""
RISE = 1.1
"""How many times the loss of the first steps is a training that goes wrong.

Means of WINDOW steps of the embedded pair's trainings at their own learning rates are below the first ones from the
second window on; at a learning rate of 1.0 they are several times as high (docs/training.md has the figures).
"""
WARN_STEPS = 100
"""A rise is warned of once in so many steps."""


class TrainingFailed(Exception):
    """A training of no use: its loss is no number, or what came of it is worse than what it began with."""


@dataclass
class LossCourse:
    """One loss over the steps of a training; `state` goes into checkpoints, of no influence on the weights."""

    name: str
    remedy: str
    """What to do about a rise."""
    first: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    steps: int = 0
    _warned_at: int = -WARN_STEPS

    def enter(self, loss: float, step: int) -> str:
        """Take the loss of one more step; return a warning, or nothing. Raises TrainingFailed where it is no number."""
        if not math.isfinite(loss):
            raise TrainingFailed(f"{self.name} is {loss} at step {step}: the training has diverged; {self.remedy}")
        self.steps += 1
        if len(self.first) < WINDOW:
            self.first.append(loss)
        self.last = [*self.last, loss][-WINDOW:]
        if not self.risen or step < self._warned_at + WARN_STEPS:
            return ""
        self._warned_at = step
        return f"step {step}: {self.name} is {self.now:.3f}, it was {self.start:.3f} at first; {self.remedy}"

    @property
    def start(self) -> float:
        """Mean of the first steps."""
        return _mean(self.first)

    @property
    def now(self) -> float:
        """Mean of the last steps."""
        return _mean(self.last)

    @property
    def risen(self) -> bool:
        """Whether the last steps' loss is far above the first ones', which takes more than WINDOW steps to know."""
        return self.steps > WINDOW and self.now > RISE * self.start

    def check(self) -> None:
        """Raise TrainingFailed where a training has ended that has raised its loss."""
        if self.risen:
            raise TrainingFailed(
                f"{self.name} has risen from {self.start:.3f} in the first {len(self.first)} steps to {self.now:.3f} "
                f"in the last {len(self.last)}: what was trained is worse than what it began with and is not written; "
                f"{self.remedy}"
            )

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"first": self.first, "last": self.last, "steps": self.steps}

    def take(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint has kept; one of an earlier version has kept nothing."""
        self.first, self.last = list(state.get("first", ())), list(state.get("last", ()))
        self.steps = int(state.get("steps", 0))


def remedy(learning_rate: float) -> str:
    """Return what to do about a training that goes wrong at this learning rate."""
    return f"give a lower --learning-rate than {learning_rate:g}, and another --out"


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses) if losses else 0.0
