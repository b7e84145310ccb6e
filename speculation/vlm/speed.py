"""What a loaded model takes: its memory, and the time of a few forwards that decode one token each."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward, prefill
from speculation.vlm.inputs import Inputs
from speculation.vlm.memory import gigabytes, loaded_bytes
from speculation.vlm.model import Vlm
from speculation.vlm.positions import text_positions

PROMPT_TOKENS = 64
WARM_UP = 2
DECODES = 5


def timed(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Return the seconds of each of `repeats` calls, the device idle at both ends, after WARM_UP calls."""
    seconds = []
    for index in range(WARM_UP + repeats):
        synchronise(device)
        began = time.perf_counter()
        work()
        synchronise(device)
        if index >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    return seconds


def synchronise(*devices: torch.device) -> None:
    """Wait until GPUs have done what they were given; the CPU always has."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def text_inputs(count: int) -> Inputs:
    """Return a prompt of `count` tokens without meaning; times do not depend on the tokens."""
    return Inputs(np.zeros(count, dtype=np.int64), None, (), text_positions(count), 0)


def decode_seconds(vlm: Vlm) -> float:
    """Return the median seconds of a forward that decodes one token behind a prompt of 64."""
    cache = KVCache(vlm, 1, PROMPT_TOKENS + 2)
    root = prefill(vlm, cache, 0, text_inputs(PROMPT_TOKENS))
    length = cache.length[0]

    def decode() -> None:
        cache.truncate(0, length)
        forward(vlm, cache, [draft_chunk(cache, 0, root, [], [])])

    return statistics.median(timed(decode, vlm.device, DECODES))


def announce(vlm: Vlm, logger: logging.Logger) -> None:
    """Log in one line what the model takes: bytes of its weights and milliseconds of a decode."""
    dtype = str(vlm.dtype).removeprefix("torch.")
    rounded = "" if vlm.quantisation == "none" else f", {vlm.quantisation}"
    logger.info(
        "%s: %s of weights in %s%s, %.1f ms a decode on %s",
        vlm.name, gigabytes(loaded_bytes(vlm.model)), dtype, rounded, 1e3 * decode_seconds(vlm), _where(vlm),
    )  # fmt: skip


def _where(vlm: Vlm) -> str:
    """Return the device of a model or, of several, which layers each of them holds."""
    if len(vlm.spans) == 1:
        return str(vlm.device)
    return ", ".join(f"{span.device} (layers {span.first} to {span.end - 1})" for span in vlm.spans)
