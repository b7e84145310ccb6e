"""Prompt and frame become what the model reads; what cannot be used is refused in words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from speculation.language.prompts import IMAGE_MARK, conversation
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from tests.models import frame
from tests.speculation.pictures import jpeg


def test_prompt_is_chat_with_one_image(target: Vlm) -> None:
    inputs = prepare(target, " find the silver bottle ", frame(0))
    text = target.tokenizer.decode(inputs.ids)
    place = "<|image_pad|>" * 4
    question = f"<|vision_start|>{place}<|vision_end|>find the silver bottle"
    assert text == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    assert inputs.grids == ((1, 4, 4),)
    assert inputs.pixel_values.shape == (16, 3 * 2 * 14 * 14)
    assert inputs.positions.shape == (3, len(inputs.ids))
    assert inputs.positions[:, -1].tolist() == [len(inputs.ids) - 1 + inputs.delta] * 3


@pytest.mark.parametrize(
    "pixels",
    [
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


def test_a_question_of_too_many_frames_or_none(target: Vlm) -> None:
    for count in (0, 5):
        with pytest.raises(ValueError, match=f"a question has {count} frames; give 1 to 4"):
            prepare(target, "go", (jpeg(frame(0)),) * count)


def test_a_conversation_may_be_words_alone_and_else_has_its_images_where_they_stand(target: Vlm) -> None:
    words = prepare(target, conversation([("system", "Be brief."), ("user", "so?")]), b"")
    assert words.pixel_values is None and target.image_token not in words.ids
    with pytest.raises(ValueError, match="0 bytes"):
        prepare(target, "find it", b"")
    with pytest.raises(ValueError, match="image places"):
        prepare(target, conversation([("user", "find it")]), frame(0))
    robots = prepare(target, "find it", frame(0))
    named = prepare(target, conversation([("user", f"{IMAGE_MARK}find it")]), frame(0))
    assert named.ids.tolist() == robots.ids.tolist()


@pytest.mark.parametrize(
    ("ids", "images"),
    [([9, 9, 1, 9, 9], 1), ([9] * 5, 1), ([9] * 3, 1), ([1, 2], 1), ([9] * 4, 2), ([9] * 5 + [1] + [9] * 3, 2)],
)
def test_image_tokens_that_do_not_fit_their_images_are_refused(target: Vlm, ids: list[int], images: int) -> None:
    with pytest.raises(ValueError, match=rf"prompt has {ids.count(9)} image tokens, which are not those of images"):
        target.family.positions(target.model, np.array(ids), 9, [(1, 4, 4)] * images)
