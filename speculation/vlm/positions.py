"""M-RoPE positions of a prompt with one image (Qwen2-VL, arXiv 2409.12191, section 2.1), in numpy.

Text tokens stand at one position in all three dimensions; image tokens stand at (time, row, column), counted from
where the image begins, and the text goes on after the image's longest side. So positions run behind the token count,
and every token after the prompt stands at its own count plus one constant, the *delta*.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Grid = tuple[int, int, int]
Ints = npt.NDArray[np.int64]


def image_token_count(grid: Grid, merge: int) -> int:
    """Return how many prompt tokens an image of `grid` patches (time, rows, columns) takes, `merge` x `merge` each."""
    return grid[0] * grid[1] * grid[2] // merge**2


def text_positions(count: int) -> Ints:
    """Return positions [3, count] of a prompt without an image: each token's own count. Its delta is 0."""
    return np.tile(np.arange(count, dtype=np.int64), (3, 1))


def mrope_positions(ids: Ints, image_token: int, grid: Grid, merge: int) -> tuple[Ints, int]:
    """Return positions [3, n] of the tokens `ids` [n] and the delta, for one image anywhere in the prompt.

    Raises ValueError unless `ids` holds exactly one unbroken run of `image_token`, as long as `grid` asks for.
    """
    places = np.flatnonzero(ids == image_token)
    count = image_token_count(grid, merge)
    if len(places) != count or (count and places[-1] - places[0] + 1 != count):
        raise ValueError(f"prompt has {len(places)} image tokens, its image of {grid} patches needs {count} in one run")
    begin, end = (int(places[0]), int(places[-1]) + 1) if count else (len(ids), len(ids))
    time, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    positions = np.empty((3, len(ids)), dtype=np.int64)
    positions[:, :begin] = np.arange(begin)
    positions[:, begin:end] = begin + np.indices((time, rows, columns), dtype=np.int64).reshape(3, -1)
    # The longest side in rows and columns alone is transformers' rule; time is 1 for a single frame.
    after = begin + max(rows, columns) if count else begin
    positions[:, end:] = after + np.arange(len(ids) - end)
    delta = int(positions.max()) + 1 - len(ids) if len(ids) else 0
    return positions, delta
