"""The annotated frame: whatever is known is shown where it belongs, and nothing makes drawing fail."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_vlm_nav.annotate import (
    AMBER,
    BAR,
    GREEN,
    RED,
    STRIP,
    Caption,
    Colour,
    annotate,
    annotated_jpeg,
    arrow,
    wrap,
)  # fmt: skip
from spec_vlm_nav.messages import EDGE_ONLY, FALLBACK
from speculation.frames import decode_jpeg
from speculation.language.prompts import ACTIONS, MOTIONS, NOT_HERE, STOP, ActionKind, ActionSize, NavigationAction

Pixels = npt.NDArray[np.uint8]
WIDTH = 512
FRAME = np.full((224, 224, 3), 90, np.uint8)
LEFT, RIGHT, AHEAD = (
    NavigationAction(kind, ActionSize.LARGE)
    for kind in (ActionKind.TURN_LEFT, ActionKind.TURN_RIGHT, ActionKind.FORWARD)
)
MOVING = Caption("find the blue mug", "moving", "", "nominal", True, 3, AHEAD, reasons="The blue mug is on the left.")


def frame_of(image: Pixels) -> Pixels:
    """The part that shows the camera's frame."""
    return image[BAR:-STRIP]


def has(image: Pixels, colour: Colour) -> bool:
    """Whether some pixel has the colour; letters are thin, so only about."""
    return bool((np.abs(image.astype(int) - colour).max(axis=2) < 12).any())


def marked(caption: Caption) -> npt.NDArray[np.intp]:
    """Rows and columns [2, n] of the frame's pixels that the action changes."""
    plain, shown = annotate(FRAME, replace(caption, decided=False)), annotate(FRAME, caption)
    return np.array(np.nonzero((frame_of(plain) != frame_of(shown)).any(axis=2)))


def test_an_arrow_points_where_the_robot_goes() -> None:
    left, right, ahead = (marked(replace(MOVING, action=action))[1].mean() / WIDTH for action in (LEFT, RIGHT, AHEAD))
    assert left < 0.45 and right > 0.55 and ahead == pytest.approx(0.5, abs=0.01)
    assert left + right == pytest.approx(1.0, abs=0.02), "mirrored"


@given(st.sampled_from(MOTIONS), st.integers(64, 1920), st.integers(64, 1920))
def test_every_arrow_lies_on_the_frame(action: NavigationAction, width: int, height: int) -> None:
    outline = arrow(action, width, height)
    assert (outline >= 0).all() and (outline < (width, height)).all()
    assert cv2.contourArea(outline) > 0.004 * width * height


def test_source_state_and_link_have_their_colours() -> None:
    verified, alone = annotate(FRAME, MOVING), annotate(FRAME, replace(MOVING, source=EDGE_ONLY, link="degraded"))
    assert has(verified[-STRIP:], GREEN) and not has(verified[-STRIP:], AMBER)
    assert has(alone[-STRIP:], AMBER) and not has(alone[-STRIP:], GREEN)
    assert has(verified[:BAR, : WIDTH // 2], GREEN) and has(alone[:BAR, WIDTH // 2 :], AMBER)
    hold = replace(MOVING, action=None, source=FALLBACK, state="holding", reason="no frame", link="hold")
    held = annotate(FRAME, hold)
    assert has(held[:BAR, WIDTH // 2 :], RED) and has(held[:BAR, : WIDTH // 2], AMBER)
    stop, gone = (frame_of(annotate(FRAME, replace(MOVING, action=action))) for action in (STOP, NOT_HERE))
    assert (stop[..., 0] > stop[..., 1] + 60).any(), "a red word"
    assert (gone != annotate(FRAME, replace(MOVING, decided=False))[BAR:-STRIP]).any()
    assert not (np.ptp(gone.astype(int), axis=2) > 60).any(), "a grey one"


def test_old_frames_are_marked() -> None:
    fresh = replace(MOVING, frame_age_s=0.5)
    assert (annotate(FRAME, fresh) == annotate(FRAME, MOVING)).all()
    assert (annotate(FRAME, replace(fresh, frame_age_s=4.0)) != annotate(FRAME, MOVING)).any()


CAPTIONS = st.builds(
    Caption, instruction=st.text(max_size=80), state=st.sampled_from(["", "moving", "holding", "odd"]),
    reason=st.text(max_size=80), link=st.text(max_size=12), decided=st.booleans(), step=st.integers(0, 2**32 - 1),
    action=st.sampled_from([None, *ACTIONS]), source=st.integers(0, 255), complete=st.booleans(),
    reasons=st.text(max_size=400), guess=st.text(max_size=80),
    acceptance=st.none() | st.floats(0.0, 1.0), rtt_s=st.none() | st.floats(0.0, 60.0),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(CAPTIONS, st.integers(1, 40), st.integers(1, 40), st.integers(128, 300))
def test_anything_can_be_shown_on_anything(caption: Caption, height: int, wide: int, width: int) -> None:
    image = annotate(np.zeros((height, wide, 3), np.uint8), caption, width)
    assert image.dtype == np.uint8 and image.shape[1:] == (width, 3)
    assert BAR + STRIP < image.shape[0] <= BAR + STRIP + 2 * width


@given(st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=60)))
def test_lines_fit_and_lose_no_word(words: list[str]) -> None:
    from PIL import ImageFont

    lines = list(wrap(words, 15, 200.0))
    font = ImageFont.load_default(15)
    assert all(font.getlength(" ".join(line)) <= 200.0 for line in lines)
    kept = [word for line in lines for word in line]
    assert len(kept) == len(words)
    for word, shown in zip(words, kept, strict=True):
        assert shown == word or (font.getlength(word) > 200.0 and word.startswith(shown.removesuffix("..")))


def test_an_image_file_in_jpeg_out_and_what_cannot_be_shown_is_refused() -> None:
    for kind in (".jpg", ".png"):
        done, data = cv2.imencode(kind, FRAME)
        assert done
        assert decode_jpeg(annotated_jpeg(bytes(data), MOVING, 300)).shape == (BAR + 300 + STRIP, 300, 3)
    with pytest.raises(ValueError, match="does not decode"):
        annotated_jpeg(b"no image", MOVING)
    with pytest.raises(ValueError, match="width is 100; give at least 128"):
        annotate(FRAME, MOVING, 100)
    with pytest.raises(ValueError, match="no RGB pixels"):
        annotate(np.zeros((0, 5, 3), np.uint8), MOVING)
