"""A tiny shape, and hand-made training frames: a coloured square somewhere, labelled as the simulator would."""

from __future__ import annotations

import cv2
import numpy as np

from adapters_training.records import CELLS, Frame, Seen, Task
from adapters_training.shapes import Shape

TINY = Shape(hidden=48, layers=3, heads=2, kv_heads=2, mlp=64, vision=32, vision_layers=1, vision_heads=2)
"""A model of the embedded pair's architecture."""


def make_frame(rng: np.random.Generator, side: str = "left", action: str = "turn left medium") -> Frame:
    """Return a frame with a red ball on `side`, one task that sees it and one for an object that is not there."""
    pixels = np.full((224, 224, 3), 120, np.uint8) + rng.integers(0, 40, (224, 224, 3), dtype=np.uint8)
    column = {"left": 1, "slightly left": 2, "ahead": 4, "slightly right": 5, "right": 6}[side]
    pixels[112:140, column * 28 : column * 28 + 28] = (30, 20, 220)
    cells = np.zeros((CELLS, CELLS), np.uint8)
    cells[4, column] = 2
    distance = np.where(cells > 0, 15, 0).astype(np.uint8)
    ball = Seen("red", "ball", side, 1.5)
    tasks = [
        Task("red", "ball", ball, action, "approach"),
        Task("blue", "ball", None, "turn left large", "search"),
    ]
    jpeg = cv2.imencode(".jpg", pixels)[1].tobytes()
    free = bytes(range(10, 10 + CELLS))
    return Frame(jpeg, cells.tobytes(), cells.tobytes(), distance.tobytes(), [ball], tasks, free=free)
