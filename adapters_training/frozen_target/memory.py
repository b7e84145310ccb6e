"""How much memory a training will need, before it loads anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adapters_training.frozen_target.config import FrozenTargetConfig
from speculation.vlm.folder import stored_tensors, weight_files
from speculation.vlm.memory import available_bytes, gigabytes, weight_bytes

PROGRAM = 700e6
"""Python, torch and what they load."""
ADAM_BYTES = 16
"""Of a float32 weight that learns: itself, its gradient and two moments."""
LOGIT_COPIES = 6
"""Float32 copies of one exit's logits at the worst moment: logits, log-probabilities and gradients of either side."""
ACTIVATIONS = 24
"""Float32 numbers of its width that a decoder layer in training keeps for a token: input, projections, feed-forward."""


@dataclass(frozen=True)
class Need:
    """Bytes of the target's weights, of what learns with its optimiser, and of one step."""

    target: float
    learning: float
    step: float

    @property
    def total(self) -> float:
        """All of it, with the program."""
        return self.target + self.learning + self.step + PROGRAM


def check(
    folder: Path, config: FrozenTargetConfig, weights: int, step: float, device: str, dtype: str, made: str,
    smaller: str,
) -> Need:  # fmt: skip
    """Return what training so many weights needs. Raises ValueError, in a sentence, if `device` has less memory free.

    `made` is what learns; `smaller` names the options to try.
    """
    target = weight_bytes(stored_tensors(weight_files(folder)), dtype, config.quantisation)
    need, free = Need(target, weights * ADAM_BYTES, step), available_bytes(device)
    if need.total > free:
        raise ValueError(
            f"too little memory: training {made} of {folder} needs about {gigabytes(need.total)} (target "
            f"{gigabytes(need.target)}, {made} {gigabytes(need.learning)}, a step {gigabytes(need.step)}), {device} "
            f"has {gigabytes(free)} free; try --dtype bfloat16, or less {smaller}"
        )
    return need
