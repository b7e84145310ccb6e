"""How much memory a training will need, before it loads anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters_training.exits.config import TrainingConfig
from speculation.vlm.folder import stored_tensors, weight_files
from speculation.vlm.memory import BYTES, available_bytes, gigabytes, text_config, weight_bytes
from speculation.vlm.settings import Quantisation

PROGRAM = 700e6
"""Python, torch and what they load."""
ADAM_BYTES = 16
"""Of a float32 weight that learns: itself, its gradient and two moments."""
LOGIT_COPIES = 6
"""Float32 copies of one exit's logits at the worst moment: logits, log-probabilities and gradients of either side."""


@dataclass(frozen=True)
class Need:
    """Bytes of the target's weights, of the adapters with their optimiser, and of one step."""

    target: float
    adapters: float
    step: float

    @property
    def total(self) -> float:
        """All of it, with the program."""
        return self.target + self.adapters + self.step + PROGRAM


def estimate(text: Mapping[str, Any], weights: int, config: TrainingConfig, exits: int, dtype: str) -> Need:
    """Return what training `exits` exits needs: `text` is the decoder's config, `weights` the loaded model's bytes."""
    hidden, tokens = int(text["hidden_size"]), config.batch * config.context
    kept = tokens * hidden * (exits + 1)
    layer = tokens * (4 * hidden + 3 * int(text["intermediate_size"]))
    logits = min(config.head_tokens, tokens) * int(text["vocab_size"]) * 4 * LOGIT_COPIES
    return Need(weights, exits * 2 * hidden * config.rank * ADAM_BYTES, (kept + layer) * BYTES[dtype] + logits)


def check(folder: Path, described: dict[str, Any], config: TrainingConfig, exits: int, device: str, dtype: str) -> Need:
    """Return the estimate. Raises ValueError, in a sentence, if `device` has less memory free.

    `described` is the target's config.json.
    """
    weights = weight_bytes(stored_tensors(weight_files(folder)), dtype, Quantisation(config.quantisation))
    need = estimate(text_config(described), weights, config, exits, dtype)
    free = available_bytes(device)
    if need.total > free:
        raise ValueError(
            f"too little memory: training {exits} exits of {folder} needs about {gigabytes(need.total)} (target "
            f"{gigabytes(need.target)}, adapters {gigabytes(need.adapters)}, a step {gigabytes(need.step)}), {device} "
            f"has {gigabytes(free)} free; try --dtype bfloat16, or less --context, --batch, --head-tokens, --rank or "
            "--layers"
        )
    return need
