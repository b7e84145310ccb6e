"""Prompt and frame -> what a loaded model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from speculation.frames import Frame, decode_frames
from speculation.language.prompts import is_conversation
from speculation.vlm.frame_size import reduced
from speculation.vlm.model import Vlm
from speculation.vlm.positions import Grid, Ints, text_positions
from speculation.wire import MAX_FRAMES, Jpegs


@dataclass(frozen=True)
class Inputs:
    """One prompt with its images, if it has any."""

    ids: Ints
    """[n]."""
    pixel_values: npt.NDArray[np.float32] | None
    """Those of all images, one after the other: Qwen's are [patches, patch_dim]. None without an image."""
    grids: tuple[Grid, ...]
    """Each image's, see `FrameProcessor`; Qwen's are (time, rows, columns) in patches."""
    positions: Ints
    """[3, n]; without an image, or in a family without M-RoPE, all three are the count."""
    delta: int
    """What later tokens add to their count to get their position."""


def prepare(vlm: Vlm, prompt: str, image: Jpegs | Frame | Sequence[Frame] | None) -> Inputs:
    """Return the inputs of one step: instruction and frame, a JPEG, RGB pixels [H, W, 3] or None for words alone.

    Several frames are given the oldest first, and the chat has them in that order. Each is prepared by itself.

    Empty bytes are "no image" on the wire: words alone to a language model, or in a `conversation`, which names the
    places of its images; but else never to a model that sees, which must not steer a robot by a frame that got lost.
    Raises ValueError, in one sentence, for an image or
    instruction that cannot be used.
    """
    is_empty = isinstance(image, bytes) and not image
    if image is None or (is_empty and (is_conversation(prompt) or not vlm.sees_images)):
        ids = vlm.processor.encode_text(prompt)
        return Inputs(ids, None, (), text_positions(len(ids)), 0)
    frames = vlm.processor.frames
    if frames is None:
        raise ValueError(f"model {vlm.folder.name} is a language model alone and sees no images; give it none")
    encoded = [frames.encode(frame) for frame in _frames(image)]
    pixel_values, grids = np.concatenate([pixels for pixels, _ in encoded]), tuple(grid for _, grid in encoded)
    ids = vlm.processor.encode_text(prompt, [frames.placeholder(grid) for grid in grids])
    positions, delta = vlm.family.positions(vlm.model, ids, vlm.image_token, grids)
    return Inputs(ids, pixel_values, grids, positions, delta)


def library_arguments(vlm: Vlm, inputs: Inputs, tokens: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """Return what transformers' own forward and `generate` take for a prompt and `tokens` behind it, on the device."""
    ids = torch.tensor([[*inputs.ids.tolist(), *tokens]], device=vlm.device)
    pixels = None if inputs.pixel_values is None else torch.from_numpy(inputs.pixel_values).to(vlm.device)
    given: dict[str, torch.Tensor] = vlm.family.arguments(
        ids, vlm.image_token if vlm.sees_images else -1, pixels, inputs.grids
    )
    return given


def as_sent(vlm: Vlm, jpeg: Jpegs) -> Jpegs:
    """Return a question's frames as edges send them to a verifier with this target: in the size in which it sees them.

    See `speculation.vlm.frame_size.reduced`; for a language model alone they stay as they are.
    """
    frames = vlm.processor.frames
    return jpeg if frames is None else reduced(jpeg, *frames.resize_rule)


def _frames(image: Jpegs | Frame | Sequence[Frame]) -> list[Frame]:
    if isinstance(image, np.ndarray):
        return [_check_frame(image)]
    if not isinstance(image, bytes) and not 1 <= len(image) <= MAX_FRAMES:
        raise ValueError(f"a question has {len(image)} frames; give 1 to {MAX_FRAMES}")
    if isinstance(image, bytes) or isinstance(image[0], bytes):
        return decode_frames(cast("Jpegs", image))
    return [_check_frame(frame) for frame in cast("Sequence[Frame]", image)]


def _check_frame(frame: Frame) -> Frame:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
        raise ValueError(f"image must be uint8 RGB [H, W, 3], got {frame.dtype} {list(frame.shape)}")
    return frame
