"""M-RoPE positions of a prompt with images (Qwen2-VL, arXiv 2409.12191, section 2.1), in numpy.

Text tokens stand at one position in all three dimensions; image tokens stand at (time, row, column), counted from
where their image begins, and the text goes on after that image's longest side. So positions run behind the token count,
and every token after the prompt stands at its own count plus one constant, the *delta*.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def mrope_positions(ids: Ints, image_token: int, grids: Sequence[Grid], merge: int) -> tuple[Ints, int]:
    """Return positions [3, n] of the tokens `ids` [n] and the delta, for images anywhere in the prompt, in their order.

    Raises ValueError unless `ids` holds, for each of `grids`, one unbroken run of `image_token` as long as it asks for,
    and no more of them.
    """
    places = np.flatnonzero(ids == image_token)
    counts = [image_token_count(grid, merge) for grid in grids]
    runs = np.split(places, np.cumsum(counts, dtype=np.int64))
    rest, at, after = runs.pop(), 0, 0
    if len(rest) or any(
        len(run) != count or (count and run[-1] - run[0] + 1 != count) for run, count in zip(runs, counts, strict=True)
    ):
        of = (
            f"its image of {grids[0]} patches needs" if len(grids) == 1 else f"its images of {list(grids)} patches need"
        )
        needed = " + ".join(map(str, counts)) or "0"
        raise ValueError(f"prompt has {len(places)} image tokens, {of} {needed} in one run each")
    positions = np.empty((3, len(ids)), dtype=np.int64)
    for (time, height, width), run in zip(grids, runs, strict=True):
        if not len(run):
            continue
        begin, end = int(run[0]), int(run[-1]) + 1
        rows, columns = height // merge, width // merge
        positions[:, at:begin] = after + np.arange(begin - at)
        after += begin - at
        positions[:, begin:end] = after + np.indices((time, rows, columns), dtype=np.int64).reshape(3, -1)
        # The longest side in rows and columns alone is transformers' rule; time is 1 for a single frame.
        after += max(rows, columns)
        at = end
    positions[:, at:] = after + np.arange(len(ids) - at)
    delta = int(positions.max()) + 1 - len(ids) if len(ids) else 0
    return positions, delta
