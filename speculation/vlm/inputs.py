"""Prompt and frame -> what a loaded model reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speculation.frames import Frame, decode_jpeg
from speculation.vlm.load import Vlm
from speculation.vlm.positions import Grid, Ints, image_token_count, mrope_positions, text_positions


@dataclass(frozen=True)
class Inputs:
    """One prompt with one image or none."""

    ids: Ints
    """[n]."""
    pixel_values: npt.NDArray[np.float32] | None
    """[patches, patch_dim]; None without an image."""
    grid: Grid | None
    """(time, rows, columns) of patches; None without an image."""
    positions: Ints
    """M-RoPE positions [3, n]; without an image all three are the count."""
    delta: int
    """What later tokens add to their count to get their position."""


def prepare(vlm: Vlm, prompt: str, image: bytes | Frame | None) -> Inputs:
    """Return the inputs of one step: instruction and frame, a JPEG, RGB pixels [H, W, 3] or None for words alone.

    Empty bytes are "no image" on the wire: words alone to a language model, but never to a model that sees,
    which must not steer a robot by a frame that got lost. Raises ValueError, in one sentence, for an image or
    instruction that cannot be used.
    """
    if image is None or (isinstance(image, bytes) and not image and not vlm.sees_images):
        ids = vlm.processor.encode_text(prompt, 0)
        return Inputs(ids, None, None, text_positions(len(ids)), 0)
    if not vlm.sees_images:
        raise ValueError(f"model {vlm.folder.name} is a language model alone and sees no images; give it none")
    frame = decode_jpeg(image) if isinstance(image, bytes) else _check_frame(image)
    pixel_values, grid = vlm.processor.encode_image(frame)
    merge = int(vlm.processor.images.merge_size)
    ids = vlm.processor.encode_text(prompt, image_token_count(grid, merge))
    positions, delta = mrope_positions(ids, vlm.image_token, grid, merge)
    return Inputs(ids, pixel_values, grid, positions, delta)


def _check_frame(frame: Frame) -> Frame:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
        raise ValueError(f"image must be uint8 RGB [H, W, 3], got {frame.dtype} {list(frame.shape)}")
    return frame
