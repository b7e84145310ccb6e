"""How much memory a training will need, before it loads anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open

from adapters_training.exits.config import ExitsConfig

GB = 1e9
PROGRAM = 0.7 * GB
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


def estimate(sizes: Any, weights: int, config: ExitsConfig, exits: int, width: int) -> Need:
    """Return what a training needs: `sizes` is the decoder's config, `weights` the model's, `width` bytes a number."""
    hidden, tokens = int(sizes.hidden_size), config.batch * config.context
    vocabulary, mlp = int(sizes.vocab_size), int(sizes.intermediate_size)
    kept = tokens * hidden * (exits + 1)
    layer = tokens * (4 * hidden + 3 * mlp)
    logits = min(config.head_tokens, tokens) * vocabulary * 4 * LOGIT_COPIES
    return Need(weights * width, exits * 2 * hidden * config.rank * ADAM_BYTES, (kept + layer) * width + logits)


def check(folder: Path, sizes: Any, config: ExitsConfig, exits: int, device: torch.device, width: int) -> Need:
    """Return the estimate. Raises ValueError, in a sentence, if `device` has less memory free."""
    need = estimate(sizes, count_weights(folder), config, exits, width)
    free = free_bytes(device)
    if need.total > free:
        raise ValueError(
            f"too little memory: training {exits} exits of {folder} needs about {need.total / GB:.1f} GB (target "
            f"{need.target / GB:.1f}, adapters {need.adapters / GB:.1f}, a step {need.step / GB:.1f}), {device} has "
            f"{free / GB:.1f} GB free; try --dtype bfloat16, or less --context, --batch, --head-tokens, --rank or "
            "--layers"
        )
    return need


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def count_weights(folder: Path) -> int:
    """Return how many weights the safetensors files of a folder hold, read from their headers."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total
