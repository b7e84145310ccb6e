"""Positions of a prompt's tokens, [3, n]: all three are the count, where a family or a prompt has no others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Grid = tuple[int, int, int]
Ints = npt.NDArray[np.int64]


def text_positions(count: int) -> Ints:
    """Return positions [3, count] of a prompt without an image: each token's own count. Its delta is 0."""
    return np.tile(np.arange(count, dtype=np.int64), (3, 1))
