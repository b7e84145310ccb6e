"""The processor equals transformers' own; templates and sizes that cannot be used are refused in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speculation.vlm.load import Vlm
from speculation.vlm.processing import Processor, build_processor
from tests.models import frame


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


def test_template_without_an_image_place(target: Vlm) -> None:
    blind = build_processor(target.tokenizer, 56, template="{{ messages[0].content[1].text }}")
    with pytest.raises(ValueError, match="renders 0 image places, one is needed"):
        blind.encode_text("go", 4)


@pytest.mark.parametrize("size", [0, 14, 100])
def test_image_size_must_fit_merged_patches(target: Vlm, size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 28"):
        build_processor(target.tokenizer, size)
