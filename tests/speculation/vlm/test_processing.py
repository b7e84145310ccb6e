"""The processor equals transformers' own; templates and sizes that cannot be used are refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from speculation.frames import decode_jpeg, jpeg_size
from speculation.vlm.families.qwen_vl import QwenFrames
from speculation.vlm.frame_size import _enough, reduced
from speculation.vlm.model import Vlm
from speculation.vlm.processing import CHAT_TEMPLATE, Processor, build_processor
from tests.models import frame
from tests.speculation.pictures import jpeg


def qwen(processor: Processor) -> QwenFrames:
    assert isinstance(processor.frames, QwenFrames)
    return processor.frames


def test_processor_survives_its_folder(target: Vlm, tmp_path: Path) -> None:
    target.processor.save(tmp_path)
    again = Processor.load(tmp_path)
    assert again.template == target.processor.template
    pixels, grid = qwen(again).encode(frame(2))
    expected, expected_grid = qwen(target.processor).encode(frame(2))
    np.testing.assert_array_equal(pixels, expected)
    assert grid == expected_grid
    np.testing.assert_array_equal(
        again.encode_text("go", ["<|image_pad|>"]), target.processor.encode_text("go", ["<|image_pad|>"])
    )


def test_patchify_equals_the_processor(target: Vlm) -> None:
    processor = qwen(build_processor(target.tokenizer, 112))
    frames = np.stack([frame(seed, 112) for seed in range(3)])
    pixels, grid = processor.patchify(frames)
    each = [processor.encode(one) for one in frames]
    np.testing.assert_array_equal(pixels, np.concatenate([values for values, _ in each]))
    assert [grid] * 3 == [one_grid for _, one_grid in each]
    with pytest.raises(ValueError, match=r"need a resize to \(56, 56\) first"):
        qwen(target.processor).patchify(np.zeros((1, 60, 60, 3), dtype=np.uint8))


SIZES = ((28, 3136, 3136), (28, 50176, 50176), (28, 3136, 28 * 28 * 400), (28, 3136, 12845056), (32, 65536, 200_000))
"""Unit, least and most pixels: of models of our own, of published ones, and bounds that are close together."""


@given(st.sampled_from(SIZES), st.integers(1, 8000), st.integers(1, 8000))
def test_what_a_frame_is_reduced_to_is_resized_as_the_frame_itself(
    sizes: tuple[int, int, int], height: int, width: int
) -> None:
    assume(max(height, width) <= 200 * min(height, width))
    # Rounding makes a strip longer still; one that would be refused then is sent as it is.
    wanted = smart_resize(height, width, *sizes)
    assume(max(wanted) <= 200 * min(wanted))
    small = _enough(height, width, *sizes)
    assert smart_resize(*small, *sizes) == wanted


BOUNDS = ((12544, 12544), (3136, 12845056), (50176, 50176), (4 * 28 * 28, 16384 * 28 * 28), (200704, 401408))


@settings(max_examples=25)
@given(st.sampled_from(BOUNDS), st.integers(1, 8000), st.integers(1, 400), st.booleans())
@example(BOUNDS[0], 140, 84, False)
@example(BOUNDS[2], 420, 84, False)
@example(BOUNDS[1], 8000, 400, False)
def test_grids_are_those_of_transformers_own_processor(
    target: Vlm, bounds: tuple[int, int], length: int, breadth: int, flat: bool
) -> None:
    assume(max(length, breadth) <= 200 * min(length, breadth))
    size = (breadth, length) if flat else (length, breadth)
    own = Qwen2VLImageProcessorPil(size={"shortest_edge": bounds[0], "longest_edge": bounds[1]})
    pixels = np.zeros((*size, 3), np.uint8)
    expected = own.preprocess(images=pixels, input_data_format="channels_last", return_tensors="np")
    values, grid = QwenFrames(own).encode(pixels)
    assert list(grid) == expected["image_grid_thw"][0].tolist()
    assert values.shape == expected["pixel_values"].shape


def picture(height: int, width: int) -> bytes:
    return jpeg(frame(3, max(height, width))[:height, :width])


@pytest.mark.parametrize("size", [(1080, 1920), (640, 480), (225, 224)])
def test_of_a_reduced_frame_the_processor_has_nothing_to_resize(
    target: Vlm, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = qwen(build_processor(target.tokenizer, 224))
    large = picture(*size)
    small = reduced(large, *processor.resize_rule)
    assert len(small) < len(large)
    grid = processor.encode(decode_jpeg(large))[1]

    def refuse(*_: object) -> None:
        raise AssertionError("no resize is needed")

    if jpeg_size(small) == processor.resized(*size):
        monkeypatch.setattr(processor.images, "resize", refuse)
    assert processor.encode(decode_jpeg(small))[1] == grid, "it has as many tokens as before"


@pytest.mark.parametrize("data", [b"", b"no image", picture(600, 600)[:400], picture(5, 1100)])
def test_what_cannot_be_reduced_is_for_the_model_to_refuse(target: Vlm, data: bytes) -> None:
    assert reduced(data, *qwen(build_processor(target.tokenizer, 224)).resize_rule) is data


def test_a_chat_of_several_images_has_a_place_for_each(target: Vlm) -> None:
    place = "<|vision_start|>{}<|vision_end|>"
    images = [qwen(target.processor).placeholder((1, 2, 2 * count)) for count in (2, 3, 1)]
    text = target.tokenizer.decode(target.processor.encode_text("go", images))
    frames = "".join(place.format("<|image_pad|>" * count) for count in (2, 3, 1))
    assert text == f"<|im_start|>user\n{frames}go<|im_end|>\n<|im_start|>assistant\n"
    single = build_processor(target.tokenizer, 56, template="<|image_pad|>")
    with pytest.raises(ValueError, match="renders 1 image places, 2 are needed"):
        single.encode_text("go", ["here"] * 2)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
@pytest.mark.parametrize("layout", [list, dict])
def test_of_several_chat_templates_the_default_is_used(target: Vlm, tmp_path: Path, file: str, layout: type) -> None:
    target.processor.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    named = {"tool_use": "no", "default": CHAT_TEMPLATE}
    held = named if layout is dict else [{"name": name, "template": text} for name, text in named.items()]
    path = tmp_path / file
    values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**values, "chat_template": held}), encoding="utf-8")
    assert Processor.load(tmp_path).template == CHAT_TEMPLATE
    path.write_text(json.dumps({**values, "chat_template": [{"name": "rag", "template": "x"}]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"with no default specified.*\['rag'\]"):
        Processor.load(tmp_path)
