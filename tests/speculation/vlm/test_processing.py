"""Prompt and frame become what transformers' own processor makes of them; what cannot be used is refused in words."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from speculation.vlm.inputs import prepare
from speculation.vlm.load import Vlm
from speculation.vlm.processing import MAX_SCANS, Processor, build_processor, decode_jpeg
from tests.hostile import scans_jpeg
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


def test_processor_survives_its_folder(target: Vlm, tmp_path: Path) -> None:
    target.processor.save(tmp_path)
    again = Processor.load(tmp_path)
    assert again.template == target.processor.template
    pixels, grid = again.encode_image(frame(2))
    expected, expected_grid = target.processor.encode_image(frame(2))
    np.testing.assert_array_equal(pixels, expected)
    assert grid == expected_grid
    np.testing.assert_array_equal(again.encode_text("go", 4), target.processor.encode_text("go", 4))


def test_legacy_chat_template_json_is_read(target: Vlm, tmp_path: Path) -> None:
    target.processor.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text('{"chat_template": "legacy <|image_pad|>"}')
    np.testing.assert_array_equal(
        Processor.load(tmp_path).encode_text("go", 1), target.tokenizer("legacy <|image_pad|>")["input_ids"]
    )


@pytest.mark.parametrize("size", [28, 56, 112])
def test_patchify_equals_the_processor(target: Vlm, size: int) -> None:
    processor = build_processor(target.tokenizer, size)
    frames = np.stack([frame(seed, size) for seed in range(3)])
    pixels, grid = processor.patchify(frames)
    each = [processor.encode_image(one) for one in frames]
    np.testing.assert_array_equal(pixels, np.concatenate([values for values, _ in each]))
    assert [grid] * 3 == [one_grid for _, one_grid in each]


def test_patchify_refuses_frames_that_need_a_resize(target: Vlm) -> None:
    with pytest.raises(ValueError, match=r"need a resize to \(56, 56\) first"):
        target.processor.patchify(np.zeros((1, 60, 60, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    "data",
    [b"", b"no image", jpeg(frame(0))[:200], b"\x89PNG\r\n\x1a\n" + bytes(50)],
    ids=["empty", "text", "cut", "png"],
)
def test_bytes_that_are_no_jpeg(target: Vlm, data: bytes) -> None:
    with pytest.raises(ValueError, match=f"image of {len(data)} bytes does not decode as JPEG"):
        prepare(target, "go", data)


@pytest.mark.parametrize(
    ("side", "sentence"),
    [(5000, "5000 x 5000 pixels exceeds the limit of 16777216 pixels"), (65000, "does not decode as JPEG")],
)
def test_jpeg_that_claims_too_many_pixels(side: int, sentence: str) -> None:
    data = bytearray(jpeg(frame(0)))
    size = data.index(b"\xff\xc0") + 5
    data[size : size + 4] = side.to_bytes(2, "big") * 2
    with pytest.raises(ValueError, match=sentence):
        decode_jpeg(bytes(data))


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded() -> None:
    """Each scan of a small file goes over all pixels: 79 kB took 6 s."""
    plain = scans_jpeg(64, 0)
    own = plain.count(b"\xff\xda")
    most = MAX_SCANS - own
    np.testing.assert_array_equal(decode_jpeg(scans_jpeg(64, most)), decode_jpeg(plain))

    def never() -> float:
        raise AssertionError("it was decoded")

    with pytest.raises(ValueError, match=f"has {MAX_SCANS + 1} scans, the limit is {MAX_SCANS}"):
        decode_jpeg(scans_jpeg(64, most + 1), clock=never)


def test_decoding_ends_when_its_time_is_over() -> None:
    """The clock is looked at every few kB; here every look takes a tenth of a second."""
    now = iter(range(1000))
    data = jpeg(np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match=f"image of {len(data)} bytes takes longer than 1 s to decode"):
        decode_jpeg(data, 1.0, lambda: next(now) / 10.0)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_what_is_decoded_in_parts_is_what_is_decoded_at_once(progressive: bool, mode: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (120, 90, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", progressive=progressive)
    with Image.open(buffer) as whole:
        np.testing.assert_array_equal(decode_jpeg(buffer.getvalue()), np.asarray(whole.convert("RGB")))


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


def test_template_without_an_image_place(target: Vlm) -> None:
    blind = build_processor(target.tokenizer, 56, template="{{ messages[0].content[1].text }}")
    with pytest.raises(ValueError, match="renders 0 image places, one is needed"):
        blind.encode_text("go", 4)


@pytest.mark.parametrize("size", [0, 14, 100])
def test_image_size_must_fit_merged_patches(target: Vlm, size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 28"):
        build_processor(target.tokenizer, size)
