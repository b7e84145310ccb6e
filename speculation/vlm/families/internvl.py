"""InternVL3.5 (arXiv 2508.18265) and 3, in the layout of transformers: checkpoints whose name ends in -HF or -hf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from speculation.vlm.families.family import Family, Seen
from speculation.vlm.families.tiles import TileFrames
from speculation.vlm.positions import Grid

if TYPE_CHECKING:
    from torch import Tensor


class InternVLFrames(TileFrames):
    """A frame is resized to the rows and columns of tiles that distort it least; a small picture of all comes last."""

    place = "<IMG_CONTEXT>"

    tiles_field, tokens_field = "size", "image_seq_length"
    # Whatever the folder's files say of crop_to_patches: transformers' processor of the whole model overrules it.
    options: ClassVar[dict[str, Any]] = {"crop_to_patches": True}

    @classmethod
    def library(cls) -> Any:
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        return GotOcr2ImageProcessorPil

    @classmethod
    def tokens_of(cls, whole: Any, images: Any, patches: int) -> int:
        if whole.vision_feature_select_strategy != "default":
            raise ValueError(
                f"config.json: vision_feature_select_strategy is {whole.vision_feature_select_strategy!r}, only "
                "'default' makes a square of a tile's patches"
            )
        return int(patches * whole.downsample_ratio) ** 2

    def grid(self, height: int, width: int) -> Grid:
        return int(self.images.get_number_of_image_patches(height, width, self.options)), 0, 0

    def placeholder(self, grid: Grid) -> str:
        return f"<img>{super().placeholder(grid)}</img>"

    def limit(self, least: int, most: int) -> None:
        """See `FrameProcessor.limit`: rows times columns of tiles have so many pixels, the small picture comes on top.

        Raises ValueError where no number of tiles is within the bounds. The folder's own bound is never exceeded.
        """
        tile = self.side**2
        fewest = max(self.images.min_patches, -(-least // tile))
        top = min(self.images.max_patches, most // tile) if most else self.images.max_patches
        if not 1 <= fewest <= top:
            raise ValueError(
                f"frames are cut into {self.images.min_patches} to {self.images.max_patches} tiles of {self.side} x "
                f"{self.side} = {tile} pixels, none of these numbers is within min_pixels {least} and max_pixels "
                f"{most}; choose others, 0 keeps the model's own"
            )
        self.images.min_patches, self.images.max_patches = fewest, top


class InternVL(Family):
    """InternVL3.5 with a decoder of Qwen3, dense or with experts, and InternVL3 with Qwen2's."""

    classes: ClassVar[dict[str, str]] = {"internvl": "InternVLForConditionalGeneration"}
    decoder = "model.language_model"
    vision = ("model.vision_tower", "model.multi_modal_projector")
    tower = "model.vision_tower.encoder.layer"
    processor = InternVLFrames
    decoders = ("qwen3", "qwen3_moe", "qwen2", "llama")

    def see(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Seen:
        found = model.model.get_image_features(pixels, return_dict=True)
        return Seen(found.pooler_output.flatten(0, 1))
