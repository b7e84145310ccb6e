"""SmolVLM2 (arXiv 2504.05299), 256M, 500M and 2.2B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from speculation.vlm.families.family import Family, Seen
from speculation.vlm.families.tiles import TileFrames
from speculation.vlm.positions import Grid

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_SIDE = 4096
"""Pixels beyond which transformers' image processor never enlarges a frame."""
AROUND = "<fake_token_around_image>"
WHOLE = "<global-img>"
"""Tokens before each tile and behind the last one, and before the small picture of all."""


class SmolVLMFrames(TileFrames):
    """A frame is enlarged or reduced to a longest side, then cut; a small picture of all comes last.

    The prompt names each tile's row and column. A frame of one tile has no rows and columns.
    """

    place = "<image>"

    tiles_field, tokens_field = "max_image_size", "image_seq_len"
    options: ClassVar[dict[str, Any]] = {"return_row_col_info": True}

    @classmethod
    def library(cls) -> Any:
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

        return SmolVLMImageProcessorPil

    @classmethod
    def tokens_of(cls, whole: Any, images: Any, patches: int) -> int:
        if images.do_resize and not images.size["longest_edge"]:
            raise ValueError(f"frames are resized to size {dict(images.size)}, known is a longest_edge")
        return int(patches**2 / whole.scale_factor**2)

    def grid(self, height: int, width: int) -> Grid:
        if not self.images.do_image_splitting:
            return 1, 0, 0
        if self.images.do_resize:
            height, width = _scaled(height, width, self.images.size["longest_edge"])
        rows, columns = self._rows_and_columns(height, width)
        return (1, 0, 0) if rows == columns == 1 else (rows * columns + 1, rows, columns)

    def placeholder(self, grid: Grid) -> str:
        tile = self.place * self.tokens_per_tile
        _, rows, columns = grid
        lines = [
            "".join(f"{AROUND}<row_{row}_col_{column}>{tile}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        ]
        before = "".join(lines) + "\n" if lines else ""
        return f"{before}{AROUND}{WHOLE}{tile}{AROUND}"

    def limit(self, least: int, most: int) -> None:
        """See `FrameProcessor.limit`: the longest side is so short that no frame has more tiles than so many pixels.

        Raises ValueError for `least`, as every frame has that longest side, and for less than a tile. The folder's own
        bound is never exceeded.
        """
        if least:
            raise ValueError("every frame is resized to one longest side; leave min_pixels out, and set max_pixels")
        if not most:
            return
        tiles = math.isqrt(most) // self.side
        if not tiles:
            raise ValueError(
                f"max_pixels {most} is less than the {self.side} x {self.side} = {self.side**2} pixels of one tile; "
                "choose more, 0 keeps the model's own"
            )
        if not (self.images.do_resize and self.images.do_image_splitting):
            raise ValueError("the model's files ask for frames that are not resized before they are cut into tiles; "
                             "leave max_pixels out")  # fmt: skip
        self.images.size = {"longest_edge": min(self.images.size["longest_edge"], tiles * self.side)}

    def _rows_and_columns(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of a frame that is enlarged to whole tiles, its longer side first."""
        proportion = width / height
        if width >= height:
            columns = math.ceil(width / self.side)
            return math.ceil(int(columns * self.side / proportion) / self.side), columns
        rows = math.ceil(height / self.side)
        return rows, math.ceil(int(rows * self.side * proportion) / self.side)


def _scaled(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return the height and width of a frame whose longest side becomes `longest`: the other one is even."""
    proportion = width / height
    if width >= height:
        height, width = int(longest / proportion), longest
        height += height % 2
    else:
        height, width = longest, int(longest * proportion)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    proportion = width / height
    if width >= height and width > LONGEST_SIDE:
        return max(int(LONGEST_SIDE / proportion), 1), LONGEST_SIDE
    if height > LONGEST_SIDE:
        return LONGEST_SIDE, max(int(LONGEST_SIDE * proportion), 1)
    return height, width


class SmolVLM(Family):
    """A SigLIP tower before a decoder of Llama's kind."""

    classes: ClassVar[dict[str, str]] = {"smolvlm": "SmolVLMForConditionalGeneration"}
    decoder = "model.text_model"
    vision = ("model.vision_model", "model.connector")
    tower = "model.vision_model.encoder.layers"
    processor = SmolVLMFrames
    decoders = ("llama",)

    def see(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Seen:
        """See `Family.see`; all tiles are full, so none is masked."""
        import torch

        found = model.model.get_image_features(pixels[None], return_dict=True)
        return Seen(torch.cat(tuple(found.pooler_output)))

    def arguments(self, ids: Tensor, image_token: int, pixels: Tensor | None, grids: Sequence[Grid]) -> dict[str, Any]:
        return super().arguments(ids, image_token, None if pixels is None else pixels[None], grids)
