"""SmolVLM2 (arXiv 2504.05299), 256M, 500M and 2.2B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from speculation.vlm.families.family import Family, FrameProcessor, Pixels, Seen
from speculation.vlm.families.tiles import TileFrames, check_tiles, square, whole_config
from speculation.vlm.positions import Grid

if TYPE_CHECKING:
    from torch import Tensor

    from speculation.frames import Frame

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

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> SmolVLMFrames:
        """Read the image processor's files of a folder whose config.json is `config`. Raises OSError or ValueError."""
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

        whole, images = (
            whole_config(config),
            SmolVLMImageProcessorPil.from_pretrained(str(folder), local_files_only=True),
        )
        side = square("image_size", whole.vision_config.image_size)
        patches = side // square("patch_size", whole.vision_config.patch_size)
        tokens = int(patches**2 / whole.scale_factor**2)
        check_tiles(folder, images, ("max_image_size", images.max_image_size), side, ("image_seq_len", tokens))
        if images.do_resize and not images.size["longest_edge"]:
            raise ValueError(f"frames are resized to size {dict(images.size)}, known is a longest_edge")
        return cls(images, side, tokens)

    def cut(self, frame: Frame) -> tuple[Pixels, Grid]:
        """See `TileFrames.cut`."""
        found = self.images.preprocess(
            images=frame, return_row_col_info=True, input_data_format="channels_last", return_tensors="np"
        )
        pixels = found["pixel_values"][0]
        return pixels, (len(pixels), int(found["rows"][0][0]), int(found["cols"][0][0]))

    def grid(self, height: int, width: int) -> Grid:
        """See `FrameProcessor.grid`."""
        if not self.images.do_image_splitting:
            return 1, 0, 0
        if self.images.do_resize:
            height, width = _scaled(height, width, self.images.size["longest_edge"])
        rows, columns = self._rows_and_columns(height, width)
        return (1, 0, 0) if rows == columns == 1 else (rows * columns + 1, rows, columns)

    def placeholder(self, grid: Grid) -> str:
        """See `FrameProcessor.placeholder`."""
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
    decoders = ("llama",)

    def frames(self, folder: Path, config: dict[str, Any]) -> FrameProcessor:
        """See `Family.frames`."""
        return SmolVLMFrames.load(folder, config)

    def see(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Seen:
        """See `Family.see`; all tiles are full, so none is masked."""
        import torch

        found = model.model.get_image_features(pixels[None], return_dict=True)
        return Seen(torch.cat(tuple(found.pooler_output)))

    def vision_layers(self, model: Any) -> Sequence[Any]:
        """See `Family.vision_layers`."""
        layers: Sequence[Any] = model.model.vision_model.encoder.layers
        return layers

    def arguments(self, ids: Tensor, image_token: int, pixels: Tensor | None, grids: Sequence[Grid]) -> dict[str, Any]:
        """See `Family.arguments`."""
        given = super().arguments(ids, image_token, pixels, grids)
        return given if pixels is None else given | {"pixel_values": pixels[None]}
