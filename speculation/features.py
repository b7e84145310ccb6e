"""Packs the target's features of tokens as bytes: int8 with a scale a token, the same on both sides (numpy, no torch).

A token takes SCALE_BYTES of scale, float32, little endian, and one byte a number; all of it at most
`wire.MAX_FEATURE_BYTES`. What the numbers are is the business of a fed head (`speculation.fed`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from speculation.wire import MAX_FEATURE_BYTES

SCALE_BYTES = 4
MAX_SIZE = MAX_FEATURE_BYTES - SCALE_BYTES
LEVELS = 127
"""Numbers are rounded to -LEVELS..LEVELS times the scale."""
MAX_SCALE = 2.0**20
"""The largest scale: nothing that a message carries overflows where it is used."""
Numbers = npt.NDArray[np.float32]


def pack(features: Numbers) -> bytes:
    """Return features [n, size] as n x (SCALE_BYTES + size) bytes.

    A number is off by half its token's scale at most, which is the token's largest magnitude / LEVELS. Raises
    ValueError for a size out of 1..MAX_SIZE, and for numbers beyond MAX_SCALE x LEVELS or not finite.
    """
    count, size = features.shape
    _check_size(size)
    values = features.astype("<f4")
    scales: Numbers = np.abs(values).max(axis=1) / np.float32(LEVELS)
    if not (scales <= MAX_SCALE).all():
        raise ValueError(f"features have numbers beyond {MAX_SCALE * LEVELS:g}, or that are not finite")
    # Numbers so small that their scale has fewer digits than others are zeros.
    scales[scales < np.finfo(np.float32).tiny] = 0.0
    divisors = np.where(scales > 0.0, scales, np.float32(np.inf))
    levels = np.clip(np.rint(values / divisors[:, None]), -LEVELS, LEVELS).astype(np.int8)
    packed = np.empty((count, SCALE_BYTES + size), dtype=np.uint8)
    packed[:, :SCALE_BYTES] = scales[:, None].view(np.uint8)
    packed[:, SCALE_BYTES:] = levels.view(np.uint8)
    return packed.tobytes()


def unpack(packed: bytes, size: int) -> Numbers:
    """Return the features [n, size] that `pack` made bytes of.

    Raises ValueError for another number of bytes a token, and for a scale that is not in 0..MAX_SCALE.
    """
    _check_size(size)
    each = SCALE_BYTES + size
    if len(packed) % each:
        raise ValueError(f"{len(packed)} bytes of features are no multiple of the {each} bytes of a token")
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(-1, each)
    scales = np.ascontiguousarray(rows[:, :SCALE_BYTES]).view("<f4")[:, 0]
    if not ((scales >= 0.0) & (scales <= MAX_SCALE)).all():
        raise ValueError(f"a scale of the features is not in 0..{MAX_SCALE:g}")
    numbers: Numbers = rows[:, SCALE_BYTES:].view(np.int8).astype(np.float32) * scales[:, None]
    return numbers


def _check_size(size: int) -> None:
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"features of {size} numbers a token; there are 1 to {MAX_SIZE}")
