"""Frames that are cut into square tiles of one size, each of which takes the same number of tokens."""

from __future__ import annotations

import json
from abc import abstractmethod
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speculation.vlm.families.family import FrameProcessor, Pixels
from speculation.vlm.positions import Grid
from speculation.wire import MAX_FRAME_PIXELS

if TYPE_CHECKING:
    from speculation.frames import Frame


class TileFrames(FrameProcessor):
    """What InternVL and SmolVLM have in common. A grid is (tiles, rows, columns); the small picture of all is a tile.

    Rows and columns are 0 where the prompt does not name them.
    """

    def __init__(self, images: Any, side: int, tokens_per_tile: int) -> None:
        """`images`: one of transformers' image processors; `side`: pixels along each side of a tile."""
        self.images = images
        self.side = side
        self.tokens_per_tile = tokens_per_tile

    @abstractmethod
    def cut(self, frame: Frame) -> tuple[Pixels, Grid]:
        """Return the tiles [tiles, 3, side, side] and the grid that transformers' image processor makes of a frame."""

    def encode(self, frame: Frame) -> tuple[Pixels, Grid]:
        """See `FrameProcessor.encode`; pixel values are [tiles, 3, side, side]."""
        pixels, grid = self.cut(frame)
        return np.ascontiguousarray(pixels, dtype=np.float32), grid

    def tokens(self, grid: Grid) -> int:
        """See `FrameProcessor.tokens`."""
        return grid[0] * self.tokens_per_tile

    @property
    def resize_rule(self) -> tuple[int, int, int]:
        """See `FrameProcessor.resize_rule`: all sizes, as no frame is resized by that rule."""
        return 1, 1, MAX_FRAME_PIXELS

    def check_images(self) -> list[tuple[Pixels, Grid]]:
        """See `FrameProcessor.check_images`: one tile."""
        pixels = np.random.default_rng(0).normal(size=(1, 3, self.side, self.side))
        return [(pixels.astype(np.float32), (1, 0, 0))]

    def save(self, folder: Path) -> None:
        """See `FrameProcessor.save`; how many tokens a tile takes stands in config.json."""
        self.images.save_pretrained(str(folder))


def whole_config(config: dict[str, Any]) -> Any:
    """Return transformers' own description of a config.json, with its defaults."""
    from transformers import AutoConfig  # late: names of families are asked for where no model is loaded

    return AutoConfig.for_model(**deepcopy(config))  # which it changes


def square(name: str, value: Any) -> int:
    """Return the side of a size that is one number or two equal ones. Raises ValueError for two that differ."""
    sides = {int(side) for side in value} if isinstance(value, list | tuple) else {int(value)}
    if len(sides) != 1:
        raise ValueError(f"config.json: {name} {list(value)} is no square, tiles are square")
    return sides.pop()


def check_tiles(folder: Path, images: Any, cut_to: tuple[str, Any], side: int, tokens: tuple[str, int]) -> None:
    """Raise ValueError where the files of the image processor do not fit what config.json says of the vision tower.

    cut_to: name and value of the tiles' size in pixels; side: what the tower takes; tokens: name in
    processor_config.json, and number by config.json, of a tile's tokens.
    """
    name, size = cut_to
    sides = {value for value in (dict(size) if size else {}).values() if value is not None}
    if sides != {side}:
        raise ValueError(f"frames are cut into tiles by {name} {dict(size or {})}, image_size in config.json is {side}")
    if not images.do_normalize or 0.0 in images.image_mean:
        raise ValueError("do_normalize is false or image_mean has a 0: a black frame would be taken for none")
    path = folder / "processor_config.json"
    stated = json.loads(path.read_text(encoding="utf-8")).get(tokens[0]) if path.is_file() else None
    if stated not in (None, tokens[1]):
        raise ValueError(f"{tokens[0]} in processor_config.json is {stated!r}, by config.json a tile takes {tokens[1]}")
