"""Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from speculation.vlm.families.family import Family, FrameProcessor, Pixels, Seen
from speculation.vlm.positions import Grid, Ints

if TYPE_CHECKING:
    from torch import Tensor

    from speculation.frames import Frame


class QwenFrames(FrameProcessor):
    """Frames keep their proportions and become a grid of patches, of which `merge` x `merge` make one token.

    A grid is (time, rows, columns) in patches; time is 1.
    """

    place = "<|image_pad|>"

    def __init__(self, images: Any) -> None:
        """`images`: transformers' Qwen2VLImageProcessorPil."""
        self.images = images

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> QwenFrames:
        found = cls(_image_processor().from_pretrained(str(folder), local_files_only=True))
        tower = config.get("vision_config") or {}
        for name, own in (("patch_size", "patch_size"), ("spatial_merge_size", "merge_size"),
                          ("temporal_patch_size", "temporal_patch_size")):  # fmt: skip
            if tower.get(name) not in (None, getattr(found.images, own)):
                raise ValueError(
                    f"{own} of its image processor is {getattr(found.images, own)}, {name} in config.json {tower[name]}"
                )
        _, least, most = found.resize_rule
        if not 0 < least <= most:
            raise ValueError(f"size of its image processor is {least} to {most} pixels")
        return found

    @classmethod
    def of(cls, **settings: Any) -> QwenFrames:
        """Return one with these settings of transformers' class, and its own for all else."""
        return cls(_image_processor()(**settings))

    @property
    def merge(self) -> int:
        """Patches along each side of what makes one token."""
        return int(self.images.merge_size)

    def encode(self, frame: Frame) -> tuple[Pixels, Grid]:
        """See `FrameProcessor.encode`; pixel values are [patches, patch_dim].

        Raises ValueError for a frame that is more than 200 times longer than wide or the reverse.
        """
        pixels = self.images.preprocess(
            images=frame,
            do_resize=self.resized(*frame.shape[:2]) != frame.shape[:2],
            input_data_format="channels_last",
            return_tensors="np",
        )
        time, rows, columns = (int(size) for size in pixels["image_grid_thw"][0])
        return np.ascontiguousarray(pixels["pixel_values"], dtype=np.float32), (time, rows, columns)

    def patchify(self, frames: npt.NDArray[np.uint8]) -> tuple[Pixels, Grid]:
        """See `FrameProcessor.patchify`; all at once, for training. Raises ValueError where a resize is needed."""
        batch, height, width, channels = frames.shape
        patch, merge, time = self.images.patch_size, self.merge, self.images.temporal_patch_size
        if self.resized(height, width) != (height, width):
            raise ValueError(
                f"frames of {height} x {width} pixels need a resize to {self.resized(height, width)} first"
            )
        rows, columns = height // patch, width // patch
        values = self._levels()[frames, np.arange(channels)]
        values = values.reshape(batch, rows // merge, merge, patch, columns // merge, merge, patch, channels)
        values = values.transpose(0, 1, 4, 2, 5, 7, 3, 6)
        values = np.repeat(values[:, :, :, :, :, :, None], time, axis=6)
        return values.reshape(batch * rows * columns, channels * time * patch * patch), (1, rows, columns)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width in pixels that a frame is resized to."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            smart_resize,  # late, as it takes a second
        )

        resized: tuple[int, int] = smart_resize(height, width, *self.resize_rule)
        return resized

    def grid(self, height: int, width: int) -> Grid:
        rows, columns = (side // self.images.patch_size for side in self.resized(height, width))
        return 1, rows, columns

    def tokens(self, grid: Grid) -> int:
        return grid[0] * grid[1] * grid[2] // self.merge**2

    @property
    def resize_rule(self) -> tuple[int, int, int]:
        size = self.images.size
        return self.images.patch_size * self.merge, size["shortest_edge"], size["longest_edge"]

    def check_images(self) -> list[tuple[Pixels, Grid]]:
        """See `FrameProcessor.check_images`: two of different sizes, as positions behind an image depend on it."""
        width = 3 * self.images.temporal_patch_size * self.images.patch_size**2
        grids: list[Grid] = [(1, 2 * self.merge, 2 * self.merge), (1, self.merge, 3 * self.merge)]
        dice = np.random.default_rng(0)
        return [(dice.normal(size=(rows * columns, width)).astype(np.float32), (1, rows, columns))
                for _, rows, columns in grids]  # fmt: skip

    def limit(self, least: int, most: int) -> None:
        """See `FrameProcessor.limit`. Raises ValueError where the bounds cross."""
        if not (least or most):
            return
        size = {"shortest_edge": least or self.images.size["shortest_edge"]}
        size["longest_edge"] = most or self.images.size["longest_edge"]
        if size["shortest_edge"] > size["longest_edge"]:
            raise ValueError(
                f"frames of at least {size['shortest_edge']} and at most {size['longest_edge']} pixels cannot be made; "
                "set both min_pixels and max_pixels"
            )
        self.images.size = size

    def save(self, folder: Path) -> None:
        self.images.save_pretrained(str(folder))

    def _levels(self) -> Pixels:
        # Normalising the 256 levels with the processor's own arithmetic makes the table equal to it bit for bit.
        ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=0)
        scaled = self.images.rescale(ramp, self.images.rescale_factor)
        levels = self.images.normalize(scaled, self.images.image_mean, self.images.image_std)
        return np.ascontiguousarray(levels[:, :, 0].T, dtype=np.float32)


class QwenVL(Family):
    """Images are runs of one token each, whose positions count time, rows and columns."""

    classes: ClassVar[dict[str, str]] = {
        "qwen2_vl": "Qwen2VLForConditionalGeneration",
        "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    }
    decoder = "model.language_model"
    vision = ("model.visual",)
    tower = "model.visual.blocks"
    processor = QwenFrames
    uses_mrope = True

    def see(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Seen:
        import torch

        return Seen(torch.cat(tuple(self._found(model, pixels, grids).pooler_output)))

    def positions(self, model: Any, ids: Ints, image_token: int, grids: Sequence[Grid]) -> tuple[Ints, int]:
        """See `Family.positions`: those of M-RoPE (Qwen2-VL, section 2.1), as transformers counts them."""
        if not grids:
            return super().positions(model, ids, image_token, grids)
        import torch

        # transformers looks at the sum of the lengths alone, and lays other positions where images do not fit.
        merged = model.config.vision_config.spatial_merge_size**2
        edges = np.flatnonzero(np.diff(ids == image_token, prepend=False, append=False))
        if (edges[1::2] - edges[::2]).tolist() != [math.prod(grid) // merged for grid in grids]:
            count = int((ids == image_token).sum())
            raise ValueError(f"prompt has {count} image tokens, which are not those of images of {list(grids)} patches")
        tokens = torch.from_numpy(ids)[None]
        is_image = (tokens == image_token).int()
        found, delta = model.model.get_rope_index(tokens, is_image, image_grid_thw=torch.tensor(grids))
        positions: Ints = found[:, 0].numpy()
        return positions, int(delta)

    def arguments(self, ids: Tensor, image_token: int, pixels: Tensor | None, grids: Sequence[Grid]) -> dict[str, Any]:
        """See `Family.arguments`.

        Without `mm_token_type_ids` transformers takes every token for a word and gets all positions behind the image
        wrong, with no error.
        """
        given = super().arguments(ids, image_token, pixels, grids)
        given["mm_token_type_ids"] = (ids == image_token).int() * (pixels is not None)
        if pixels is not None:
            given["image_grid_thw"] = ids.new_tensor(grids)
        return given

    def forget(self, model: Any) -> None:
        model.model.rope_deltas = None

    def _found(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Any:
        import torch

        return model.model.get_image_features(pixels, torch.tensor(grids, device=pixels.device))


def _image_processor() -> Any:
    # Late, as it takes a second; the Pil one, as the other needs torchvision.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil
