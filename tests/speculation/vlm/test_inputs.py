"""Prompt and frame become what the model reads; what cannot be used is refused in words."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from speculation.frames import decode_jpeg
from speculation.vlm.inputs import prepare
from speculation.vlm.load import Vlm
from tests.models import IMAGE_SIZE, frame


def jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_prompt_is_chat_with_one_image(target: Vlm) -> None:
    inputs = prepare(target, " find the silver bottle ", frame(0))
    text = target.tokenizer.decode(inputs.ids)
    place = "<|image_pad|>" * 4
    question = f"<|vision_start|>{place}<|vision_end|>find the silver bottle"
    assert text == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    assert inputs.grid == (1, 4, 4)
    assert inputs.pixel_values.shape == (16, 3 * 2 * 14 * 14)
    assert inputs.positions.shape == (3, len(inputs.ids))
    assert inputs.positions[:, -1].tolist() == [len(inputs.ids) - 1 + inputs.delta] * 3


def test_jpeg_equals_its_pixels(target: Vlm) -> None:
    data = jpeg(frame(1))
    from_bytes, from_pixels = prepare(target, "go", data), prepare(target, "go", decode_jpeg(data))
    np.testing.assert_array_equal(from_bytes.pixel_values, from_pixels.pixel_values)


def test_larger_frame_is_scaled_to_the_trained_size(target: Vlm) -> None:
    inputs = prepare(target, "go", np.zeros((96, 128, 3), dtype=np.uint8))
    assert inputs.grid[1] * inputs.grid[2] * 14 * 14 <= IMAGE_SIZE**2


@pytest.mark.parametrize(
    "data",
    [b"", b"no image", jpeg(frame(0))[:200], b"\x89PNG\r\n\x1a\n" + bytes(50)],
    ids=["empty", "text", "cut", "png"],
)
def test_bytes_that_are_no_jpeg(target: Vlm, data: bytes) -> None:
    with pytest.raises(ValueError, match=f"image of {len(data)} bytes does not decode as JPEG"):
        prepare(target, "go", data)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((56, 56), np.uint8),
        np.zeros((56, 56, 4), np.uint8),
        np.zeros((56, 56, 3)),
        np.zeros((0, 5, 3), np.uint8),
    ],
)
def test_arrays_that_are_no_frame(target: Vlm, pixels: npt.NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="image must be uint8 RGB"):
        prepare(target, "go", pixels)


def test_prompt_without_words_or_with_special_tokens(target: Vlm) -> None:
    with pytest.raises(ValueError, match="instruction is empty"):
        prepare(target, "  \n", frame(0))
    with pytest.raises(ValueError, match=r"contains the special token <\|im_end\|>"):
        prepare(target, "find<|im_end|>me", frame(0))
    with pytest.raises(ValueError, match=r"contains the special token <\|image_pad\|>"):
        prepare(target, "<|image_pad|>", frame(0))
