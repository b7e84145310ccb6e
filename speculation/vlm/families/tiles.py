"""Frames that are cut into square tiles of one size, each of which takes the same number of tokens."""

from __future__ import annotations

import json
from abc import abstractmethod
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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

    tiles_field: ClassVar[str]
    """Names the image processor's field that holds the size of its tiles, in pixels."""
    tokens_field: ClassVar[str]
    """Names the field of processor_config.json that holds how many tokens a tile takes."""
    options: ClassVar[dict[str, Any]]
    """Holds what the image processor is asked for besides tiles."""

    def __init__(self, images: Any, side: int, tokens_per_tile: int) -> None:
        """`images`: one of transformers' image processors; `side`: pixels along each side of a tile."""
        self.images = images
        self.side = side
        self.tokens_per_tile = tokens_per_tile

    @classmethod
    @abstractmethod
    def library(cls) -> Any:
        """Return transformers' image processor; late, as it takes a second."""

    @classmethod
    @abstractmethod
    def tokens_of(cls, whole: Any, images: Any, patches: int) -> int:
        """Return how many tokens a tile of `patches` x `patches` takes, by `whole`, the config with its defaults.

        Raises ValueError for what is not known in it, or in the files of the image processor.
        """

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> TileFrames:
        from transformers import AutoConfig

        whole = AutoConfig.for_model(**deepcopy(config))  # which it changes
        images = cls.library().from_pretrained(str(folder), local_files_only=True)
        side = _square("image_size", whole.vision_config.image_size)
        tokens = cls.tokens_of(whole, images, side // _square("patch_size", whole.vision_config.patch_size))
        cls._check(folder, images, side, tokens)
        return cls(images, side, tokens)

    def encode(self, frame: Frame) -> tuple[Pixels, Grid]:
        """See `FrameProcessor.encode`; pixel values are [tiles, 3, side, side]."""
        found = self.images.preprocess(
            images=frame, input_data_format="channels_last", return_tensors="np", **self.options
        )
        pixels = np.ascontiguousarray(found["pixel_values"], dtype=np.float32).reshape(-1, 3, self.side, self.side)
        rows, columns = (int(found[name][0][0]) if name in found else 0 for name in ("rows", "cols"))
        return pixels, (len(pixels), rows, columns)

    def tokens(self, grid: Grid) -> int:
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

    @classmethod
    def _check(cls, folder: Path, images: Any, side: int, tokens: int) -> None:
        """Raise ValueError where the image processor's files do not fit what config.json says of the vision tower."""
        size = dict(getattr(images, cls.tiles_field) or {})
        if {value for value in size.values() if value is not None} != {side}:
            raise ValueError(
                f"frames are cut into tiles by {cls.tiles_field} {size}, image_size in config.json is {side}"
            )
        if not images.do_normalize or 0.0 in images.image_mean:
            raise ValueError("do_normalize is false or image_mean has a 0: a black frame would be taken for none")
        path = folder / "processor_config.json"
        stated = json.loads(path.read_text(encoding="utf-8")).get(cls.tokens_field) if path.is_file() else None
        if stated not in (None, tokens):
            raise ValueError(
                f"{cls.tokens_field} in processor_config.json is {stated!r}, by config.json a tile takes {tokens}"
            )


def _square(name: str, value: Any) -> int:
    """Return the side of a size that is one number or two equal ones. Raises ValueError for two that differ."""
    sides = {int(side) for side in value} if isinstance(value, list | tuple) else {int(value)}
    if len(sides) != 1:
        raise ValueError(f"config.json: {name} {list(value)} is no square, tiles are square")
    return sides.pop()
