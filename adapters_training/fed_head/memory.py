"""How much memory the training of a fed head will need, before it loads anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapters_training.exits.memory import ADAM_BYTES, LOGIT_COPIES, Need
from adapters_training.fed_head.config import FedHeadConfig
from speculation.vlm.folder import stored_tensors, weight_files
from speculation.vlm.memory import BYTES, available_bytes, gigabytes, text_config, weight_bytes
from speculation.vlm.settings import Quantisation

ACTIVATIONS = 24
"""Float32 numbers of the head's width that a depth keeps for an entry: input, projections, feed-forward part."""


def check(folder: Path, described: dict[str, Any], config: FedHeadConfig, layers: int, device: str, dtype: str) -> Need:
    """Return the estimate. Raises ValueError, in a sentence, if `device` has less memory free.

    `described` is the target's config.json; `layers` make features.
    """
    text = text_config(described)
    hidden, vocabulary = int(text["hidden_size"]), int(text["vocab_size"])
    width, tokens = config.width or hidden, config.batch * config.context
    listed = min(config.short_list, vocabulary)
    inner = config.intermediate or 3 * width
    weights = hidden * layers * config.size + width * (config.size + 7 * width + 3 * inner + 2 * listed)
    step = tokens * hidden * (layers + 1) * BYTES[dtype]
    step += config.depths * tokens * 4 * (ACTIVATIONS * width + LOGIT_COPIES * listed + config.context)
    step += min(config.head_tokens, tokens) * vocabulary * 4 * 3
    target = weight_bytes(stored_tensors(weight_files(folder)), dtype, Quantisation(config.quantisation))
    need = Need(target, weights * ADAM_BYTES, step)
    free = available_bytes(device)
    if need.total > free:
        raise ValueError(
            f"too little memory: training a fed head of {folder} needs about {gigabytes(need.total)} (target "
            f"{gigabytes(need.target)}, head {gigabytes(need.adapters)}, a step {gigabytes(need.step)}), {device} has "
            f"{gigabytes(free)} free; try --dtype bfloat16, or less --context, --batch, --depths, --short-list or "
            "--width"
        )
    return need
