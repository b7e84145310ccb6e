"""A camera frame with what the robot makes of it: state, link, action as an arrow, reasons, figures. No ROS."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import cv2
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from PIL import Image, ImageDraw, ImageFont

from spec_vlm_nav.messages import CLOUD_VERIFIED, EDGE_ONLY, FALLBACK, SOURCE_WORDS
from spec_vlm_nav.parameters import Parameters
from speculation.frames import Frame
from speculation.images import file_pixels
from speculation.language.prompts import NOT_HERE, STOP, ActionKind, ActionSize, NavigationAction
from speculation.settings import CheckedSettings

Colour = tuple[int, int, int]
GREEN, AMBER, RED, WHITE, GREY, DARK = (
    (52, 211, 153), (251, 191, 36), (239, 68, 68), (243, 244, 246), (156, 163, 175), (17, 24, 39),
)  # fmt: skip
CYAN = (103, 232, 249)
SOURCE_COLOURS: dict[int, Colour] = {CLOUD_VERIFIED: GREEN, EDGE_ONLY: AMBER, FALLBACK: RED}
END_COLOURS: dict[NavigationAction, Colour] = {STOP: RED, NOT_HERE: GREY}
"""What ends a goal."""
HOLDING = "holding"
STATE_COLOURS = {"moving": GREEN, "thinking": CYAN, HOLDING: AMBER}
LINK_COLOURS = {
    "nominal": GREEN, "degraded": AMBER, "connecting": AMBER, "busy": AMBER, "hold": RED, "silent": RED, "refused": RED,
}  # fmt: skip
"""Colours by the mode of a goal, or by the state of a link."""
STRIP, BAR, PAD, LINES = 136, 26, 8, 4
"""Pixels below the frame, of the bar above it, between both and the text; lines of reasons at most."""
SIGN, TITLE, TEXT, SMALL = 40, 20, 15, 13
OPACITY = 0.75
SIGN_AT = 0.8
"""Where the word for STOP, NOT HERE and HOLD stands, as a share of the frame from its top."""
QUALITY = 85
OLD_S = 1.0
"""An older frame is marked as such."""
SIZE_STEPS = {ActionSize.SMALL: 1, ActionSize.MEDIUM: 2, ActionSize.LARGE: 3}


class AnnotationSettings(CheckedSettings, frozen=True):
    """How much nav_view shows. Raises ValueError, naming the setting, for a value out of range."""

    max_hz: Annotated[float, Meta(ge=0.5, le=30.0, description="images and maps a second at most")] = 5.0
    width: Annotated[int, Meta(ge=128, le=1920, description="width of the annotated image, pixels")] = 512
    broadcast_tf: Annotated[
        bool, Meta(description="publish odometry as a transform on /tf, where no driver of the robot does")
    ] = False


VIEW = Parameters(AnnotationSettings)


@dataclass(frozen=True)
class Caption:
    """What a frame is marked with; what is not known stays empty."""

    instruction: str = ""
    state: str = ""
    """Thinking, moving or holding."""
    reason: str = ""
    """Why it holds."""
    link: str = ""
    decided: bool = False
    """Whether there is a decision yet: `step` to `complete` describe it."""
    step: int = 0
    action: NavigationAction | None = None
    """None: HOLD."""
    source: int = CLOUD_VERIFIED
    """Who decided, as NavigationAction.msg numbers it."""
    complete: bool = True
    """Whether the whole answer is committed."""
    reasons: str = ""
    """The committed words of the answer."""
    guess: str = ""
    """What the draft model expects behind `reasons`."""
    acceptance: float | None = None
    """Chance of a draft token."""
    rtt_s: float | None = None
    answer_s: float | None = None
    """Time of the last answer, seconds."""
    frame_age_s: float | None = None
    understood: str = ""
    """What the model is asked to find; shown in place of the instruction."""


def annotate(frame: Frame, caption: Caption, width: int = 512) -> Frame:
    """Return the frame [H, W, 3] in `width` pixels, under a bar and over a strip of text.

    Raises ValueError for a frame without pixels or a width below 128.
    """
    if frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
        raise ValueError(f"a frame of shape {frame.shape} has no RGB pixels")
    if width < 128:
        raise ValueError(f"width is {width}; give at least 128 pixels")
    # A frame that is much higher than wide would make a poster.
    height = max(1, min(2 * width, round(width * frame.shape[0] / frame.shape[1])))
    shown = np.asarray(cv2.resize(frame, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)
    action = caption.action
    if caption.decided and action is not None and action.kind.moves:
        _mark(shown, action, SOURCE_COLOURS.get(caption.source, RED))
    canvas = np.full((BAR + height + STRIP, width, 3), DARK, np.uint8)
    canvas[BAR : BAR + height] = shown
    image = Image.fromarray(canvas)
    pen = ImageDraw.Draw(image)
    if caption.decided and (action is None or not action.kind.moves):
        words, colour = ("HOLD", AMBER) if action is None else (action.text.upper(), END_COLOURS[action])
        at = 0.5 * width, BAR + SIGN_AT * height
        pen.text(at, words, colour, _font(SIGN), anchor="mm", stroke_width=2, stroke_fill=DARK)
    _write_bar(pen, caption, width)
    _write_strip(pen, caption, width, BAR + height)
    return np.asarray(image)


def annotated_jpeg(image: bytes, caption: Caption, width: int = 512) -> bytes:
    """Return an annotated frame, of any image file, as JPEG. Raises ValueError for what is none, and as `annotate`."""
    shown = annotate(file_pixels(image), caption, width)
    done, data = cv2.imencode(".jpg", cv2.cvtColor(shown, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if not done:
        raise ValueError(f"an image of {shown.shape} does not encode")
    return bytes(data)


def wrap(words: list[str], size: int, width: float) -> Iterator[list[str]]:
    """Yield words as lines of at most `width` pixels; a word that is longer than a line is cut."""
    line: list[str] = []
    for word in words:
        if line and _length(" ".join([*line, word]), size) > width:
            yield line
            line = []
        line.append(_cut(word, size, width))
    if line:
        yield line


def arrow(action: NavigationAction, width: int, height: int) -> npt.NDArray[np.int32]:
    """Return the outline [n, 2] of a motion as an arrow on the floor before the robot, in pixels of the frame."""
    steps = SIZE_STEPS[action.size] if action.size else 0
    across, foot = 0.07 * width, (0.5 * width, 0.96 * height)
    if action.kind is ActionKind.FORWARD:
        tip, neck = foot[1] - 0.13 * height * (1 + steps), foot[1] - 0.13 * height * (0.4 + steps)
        left = [(foot[0] - across, foot[1]), (foot[0] - 0.5 * across, neck), (foot[0] - 1.2 * across, neck)]
        right = [(2 * foot[0] - x, y) for x, y in reversed(left)]
        return np.array([*left, (foot[0], tip), *right], np.int32)
    radius, end = 0.34 * width, math.radians(30.0 * steps)
    turns = np.linspace(0.0, end, 16)

    def on_arc(turn: float, distance: float) -> tuple[float, float]:
        x = 0.5 * width - radius + distance * math.cos(turn)
        return x, foot[1] - 0.9 * height / width * distance * math.sin(turn)

    outer = [on_arc(turn, radius + 0.5 * across) for turn in turns]
    inner = [on_arc(turn, radius - 0.5 * across) for turn in turns[::-1]]
    head = [
        on_arc(end, radius + 1.2 * across),
        on_arc(end + math.radians(24.0), radius),
        on_arc(end, radius - 1.2 * across),
    ]
    outline = np.array([*outer, *head, *inner])
    if action.kind is ActionKind.TURN_RIGHT:
        outline[:, 0] = width - outline[:, 0]
    return outline.astype(np.int32)


def _mark(frame: Frame, action: NavigationAction, colour: Colour) -> None:
    """Draw a motion's arrow over the frame, half transparent."""
    over, outline = frame.copy(), arrow(action, frame.shape[1], frame.shape[0])
    cv2.fillPoly(over, [outline], colour, cv2.LINE_AA)
    cv2.addWeighted(over, OPACITY, frame, 1.0 - OPACITY, 0.0, frame)
    cv2.polylines(frame, [outline], True, DARK, 2, cv2.LINE_AA)


def _write_bar(pen: ImageDraw.ImageDraw, caption: Caption, width: int) -> None:
    left, right = 0.0, float(width)
    if caption.state:
        left = _pill(pen, 0.0, caption.state.upper(), STATE_COLOURS.get(caption.state, GREY))
    if caption.link:
        words = f"link {caption.link}"
        right = width - _length(words, SMALL) - 2 * PAD
        _pill(pen, right, words, LINK_COLOURS.get(caption.link, GREY))
    room = right - left - 2 * PAD
    asked = _line(caption.understood or caption.instruction)
    if room > 0:
        pen.text((left + PAD, 5), _cut(asked, SMALL, room), WHITE, _font(SMALL))


def _pill(pen: ImageDraw.ImageDraw, left: float, words: str, colour: Colour) -> float:
    """Write words on a box of `colour` and return its right edge."""
    right = left + _length(words, SMALL) + 2 * PAD
    pen.rectangle((left, 0, right, BAR - 1), fill=colour)
    pen.text((left + PAD, 5), words, DARK, _font(SMALL))
    return right


def _write_strip(pen: ImageDraw.ImageDraw, caption: Caption, width: int, top: int) -> None:
    room = width - 2 * PAD
    if caption.decided:
        what = "HOLD" if caption.action is None else caption.action.text
        more = "" if caption.complete else " ..."
        note = f"step {caption.step}, {SOURCE_WORDS.get(caption.source, '?')}{more}"
        colour = SOURCE_COLOURS.get(caption.source, RED)
        pen.text((PAD, top + 4), what, colour, _font(TITLE))
        free = room - _length(what, TITLE) - PAD
        note = _cut(note, SMALL, free) if free > 0 else ""
        pen.text((width - PAD - _length(note, SMALL), top + 10), note, GREY, _font(SMALL))
    _write_reasons(pen, caption, room, top + 38)
    pen.text((PAD, top + STRIP - 19), _cut(_figures(caption), SMALL, room), GREY, _font(SMALL))


def _write_reasons(pen: ImageDraw.ImageDraw, caption: Caption, room: float, top: float) -> None:
    """Write why the robot holds, or the newest lines of the answer, with its guess in grey."""
    holding = bool(caption.reason) and caption.state == HOLDING
    known = caption.reason.split() if holding else caption.reasons.split()
    words = known if holding else [*known, *caption.guess.split()]
    lines = list(wrap(words, TEXT, room))
    hidden = lines[: max(0, len(lines) - LINES)]
    count = sum(map(len, hidden))
    for number, line in enumerate(lines[len(hidden) :]):
        left = float(PAD)
        for word in line:
            colour = GREY if count >= len(known) else AMBER if holding else WHITE
            pen.text((left, top + 19 * number), word, colour, _font(TEXT))
            left += _length(word + " ", TEXT)
            count += 1


def _figures(caption: Caption) -> str:
    parts = []
    if caption.frame_age_s is not None and caption.frame_age_s > OLD_S:
        parts.append(f"FRAME IS {caption.frame_age_s:.0f} s OLD")
    if caption.acceptance is not None:
        parts.append(f"accepted {caption.acceptance:.2f}")
    if caption.rtt_s is not None:
        parts.append(f"round trip {1e3 * caption.rtt_s:.0f} ms")
    if caption.answer_s is not None:
        parts.append(f"answer {caption.answer_s:.2f} s")
    return "   ".join(parts)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _length(words: str, size: int) -> float:
    return float(_font(size).getlength(words))


def _line(words: str) -> str:
    return " ".join(words.split())


def _cut(words: str, size: int, width: float) -> str:
    """Return as much of the words as fits, with dots where something is left out."""
    if _length(words, size) <= width:
        return words
    kept = bisect_right(range(1, len(words)), width, key=lambda count: _length(words[:count] + "..", size))
    return words[:kept] + ".." if kept else ""
