"""InternVL3.5 (arXiv 2508.18265) and 3, in the layout of transformers: checkpoints whose name ends in -HF or -hf."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from speculation.vlm.families.family import Family, FrameProcessor, Pixels, Seen
from speculation.vlm.families.tiles import TileFrames, check_tiles, square, whole_config
from speculation.vlm.positions import Grid

if TYPE_CHECKING:
    from torch import Tensor

    from speculation.frames import Frame


class InternVLFrames(TileFrames):
    """A frame is resized to the rows and columns of tiles that distort it least; a small picture of all comes last."""

    place = "<IMG_CONTEXT>"

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> InternVLFrames:
        """Read the image processor's files of a folder whose config.json is `config`. Raises OSError or ValueError."""
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        whole, images = (
            whole_config(config),
            GotOcr2ImageProcessorPil.from_pretrained(str(folder), local_files_only=True),
        )
        if whole.vision_feature_select_strategy != "default":
            raise ValueError(
                f"config.json: vision_feature_select_strategy is {whole.vision_feature_select_strategy!r}, only "
                "'default' makes a square of a tile's patches"
            )
        side = square("image_size", whole.vision_config.image_size)
        patches = side // square("patch_size", whole.vision_config.patch_size)
        tokens = int(patches * whole.downsample_ratio) ** 2
        check_tiles(folder, images, ("size", images.size), side, ("image_seq_length", tokens))
        return cls(images, side, tokens)

    def cut(self, frame: Frame) -> tuple[Pixels, Grid]:
        """See `TileFrames.cut`."""
        # Whatever the folder's files say of crop_to_patches: transformers' processor of the whole model overrules it.
        found = self.images.preprocess(
            images=frame, crop_to_patches=True, input_data_format="channels_last", return_tensors="np"
        )
        return found["pixel_values"], (int(found["num_patches"][0]), 0, 0)

    def grid(self, height: int, width: int) -> Grid:
        """See `FrameProcessor.grid`."""
        return int(self.images.get_number_of_image_patches(height, width, {"crop_to_patches": True})), 0, 0

    def placeholder(self, grid: Grid) -> str:
        """See `FrameProcessor.placeholder`."""
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
    decoders = ("qwen3", "qwen3_moe", "qwen2", "llama")

    def frames(self, folder: Path, config: dict[str, Any]) -> FrameProcessor:
        """See `Family.frames`."""
        return InternVLFrames.load(folder, config)

    def see(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Seen:
        """See `Family.see`."""
        found = model.model.get_image_features(pixels, return_dict=True)
        return Seen(found.pooler_output.flatten(0, 1))

    def vision_layers(self, model: Any) -> Sequence[Any]:
        """See `Family.vision_layers`."""
        layers: Sequence[Any] = model.model.vision_tower.encoder.layer
        return layers

    def arguments(self, ids: Tensor, image_token: int, pixels: Tensor | None, grids: Sequence[Grid]) -> dict[str, Any]:
        """See `Family.arguments`."""
        given = super().arguments(ids, image_token, pixels, grids)
        return given if pixels is None else given | {"pixel_values": pixels}
