"""Watches a training's loss: a rise is warned of and ends in failure, a loss that is no number ends it at once.

The loss is measured on the same few batches before the first step and after the last one. In between, the mean of the
last steps is held against the one before the first: other batches, so that it is worth a warning and no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROBE_STEPS = 4
"""Number of steps on whose batches the loss is measured before and after."""
WINDOW = 20
"""Number of last steps whose mean loss is held against the loss before the first."""
RISE = 1.1
"""How many times the loss at the start, on the same batches, is one that has risen."""
WARN_RISE = 1.5
"""The same for the last steps, on batches of their own: a new optimiser alone costs a trained model 1.2 for a while."""
WARN_STEPS = 100
"""A rise is warned of once in so many steps."""


class TrainingFailed(Exception):
    """A training of no use: its loss is no number, or what came of it is worse than what it began with."""


@dataclass
class LossMonitor:
    """One loss over the steps of a training; `state` goes into checkpoints, of no influence on the weights."""

    remedy: str
    """What to do about a rise."""
    start: float | None = None
    """The loss before the first step; None where it was not measured."""
    last: list[float] = field(default_factory=list)
    """The losses of the last steps, WINDOW at most."""
    _warned_at: int = -WARN_STEPS

    def enter(self, loss: float, step: int) -> str:
        """Take the loss of one more step; return a warning, or nothing. Raises TrainingFailed where it is no number."""
        self.check_finite(loss, step)
        self.last = [*self.last, loss][-WINDOW:]
        now = sum(self.last) / len(self.last)
        risen = self.start is not None and len(self.last) == WINDOW and now > WARN_RISE * self.start
        if not risen or step < self._warned_at + WARN_STEPS:
            return ""
        self._warned_at = step
        return f"step {step}: the loss is {now:.3f}, it was {self.start:.3f} before the first step; {self.remedy}"

    def check_finite(self, loss: float, step: int) -> None:
        """Raise TrainingFailed for a loss that is no number."""
        if not math.isfinite(loss):
            raise TrainingFailed(f"the loss is {loss} at step {step}: the training has diverged; {self.remedy}")

    def check(self, loss: float) -> None:
        """Raise TrainingFailed where this loss, measured after the last step as `start` before the first, is higher."""
        # Written so that a loss that is no number fails, too.
        if self.start is not None and not loss <= RISE * self.start:
            raise TrainingFailed(
                f"the loss was {self.start:.3f} before the first step and is {loss:.3f} after the last: what was "
                f"trained is worse than what it began with and is not written; {self.remedy}"
            )

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"start": self.start, "last": self.last}

    def take(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint has kept."""
        self.start, self.last = state["start"], list(state["last"])


def remedy(learning_rate: float) -> str:
    """Return what to do about a training that goes wrong at this learning rate."""
    return f"give a lower --learning-rate than {learning_rate:g}, and another --out"
