"""Conversation -> token ids of a model's chat, with labels on the assistant's tokens only."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from PIL import Image

from adapters_training.packing import IGNORE
from adapters_training.sources import ASSISTANT, BadRecord, Sample
from adapters_training.sources.conversations import IMAGE_FORMATS
from speculation.frames import MAX_PIXELS, Frame, decode_jpeg, turned
from speculation.images import JPEG_START
from speculation.vlm.families import FrameProcessor
from speculation.vlm.model import Vlm
from speculation.vlm.positions import Grid, Ints

CHARACTERS_PER_TOKEN = 16
"""Turns that begin beyond this many characters a token of context are not even rendered."""


@dataclass(frozen=True)
class Encoded:
    """One conversation of n tokens."""

    ids: Ints
    """[n]."""
    labels: Ints
    """[n]; labels[i] follows ids[i], IGNORE outside the assistant's text."""
    positions: Ints
    """[3, n]."""
    pixels: npt.NDArray[np.float32] | None
    """The patches of its image, or None."""
    grid: Grid | None
    """How many patches its image has: time, rows, columns; or None."""
    truncated: bool
    """Whether it was cut at the context."""


class Encoder:
    """Encodes for one target; conversations are cut at `context` tokens."""

    def __init__(self, vlm: Vlm, context: int) -> None:
        if not vlm.tokenizer.is_fast:
            raise ValueError(
                f"the tokenizer of {vlm.folder} does not report where its tokens stand; a tokenizer.json does"
            )
        self._vlm, self._context = vlm, context

    def encode(self, sample: Sample) -> Encoded:
        """Return the tokens of a conversation. Raises BadRecord, naming it, for one that cannot be trained on."""
        frames, pixels, grid, image = self._vlm.processor.frames, None, None, ""
        if sample.image is not None and frames is not None:
            pixels, grid = self._image(frames, sample)
            image = frames.placeholder(grid)
        text, spans = self._render(sample, image)
        tokens = self._vlm.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = np.array(tokens["input_ids"], dtype=np.int64)
        answered = self._answered(ids, np.array(tokens["offset_mapping"], dtype=np.int64), spans)
        truncated = len(ids) > self._context
        image_token = self._vlm.image_token if grid is not None else -1
        grids = [] if grid is None else [grid]
        positions, _ = self._vlm.family.positions(self._vlm.model, ids, image_token, grids)
        if truncated:
            if grid is not None and frames is not None and (ids[self._context :] == image_token).any():
                raise BadRecord(
                    f"{sample.where}: its image takes {frames.tokens(grid)} tokens, which does not fit the context of "
                    f"{self._context}; give a longer context or smaller images"
                )
            ids, answered, positions = ids[: self._context], answered[: self._context], positions[:, : self._context]
        labels = np.full(len(ids), IGNORE, dtype=np.int64)
        labels[:-1][answered[1:]] = ids[1:][answered[1:]]
        if not answered[1:].any():
            raise BadRecord(f"{sample.where}: no answer within the first {self._context} tokens")
        return Encoded(ids, labels, positions, pixels, grid, truncated)

    def _image(self, frames: FrameProcessor, sample: Sample) -> tuple[npt.NDArray[np.float32], Grid]:
        try:
            frame = decode_jpeg(sample.image) if isinstance(sample.image, bytes) else _read_image(sample.image)
            return frames.encode(frame)
        except (OSError, ValueError) as error:
            raise BadRecord(f"{sample.where}: image cannot be used: {error}") from None

    def _render(self, sample: Sample, image: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the chat's text and the spans of characters that are the assistant's.

        `image` takes the image's place; empty: there is none. A template does not mark whose text is where, so the chat
        is rendered up to each answer and past it.
        """
        messages: list[dict[str, Any]] = [{"role": turn.role, "content": turn.text} for turn in sample.turns]
        if image:
            first = next(index for index, turn in enumerate(sample.turns) if turn.role == "user")
            messages[first]["content"] = [{"type": "image"}, {"type": "text", "text": sample.turns[first].text}]
        text, spans = "", []
        for index, turn in enumerate(sample.turns):
            if turn.role != ASSISTANT:
                continue
            asked = self._template(messages[:index], image, sample.where, prompt=True)
            answered = self._template(messages[: index + 1], image, sample.where, prompt=False)
            if not asked.startswith(text) or not answered.startswith(asked):
                raise BadRecord(f"{sample.where}: the chat template rewrites earlier turns, so answers cannot be found")
            spans.append((len(asked), len(answered)))
            text = answered
            if len(text) > self._context * CHARACTERS_PER_TOKEN:
                break
        return text, spans

    def _template(self, messages: list[dict[str, Any]], image: str, where: str, *, prompt: bool) -> str:
        processor = self._vlm.processor
        try:
            text = processor.tokenizer.apply_chat_template(
                messages, chat_template=processor.template, tokenize=False, add_generation_prompt=prompt
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise BadRecord(f"{where}: the chat template refuses it: {' '.join(str(error).split())}") from None
        places = 0 if processor.frames is None else text.count(processor.frames.place)
        if places != (1 if image else 0):
            raise BadRecord(f"{where}: the chat template renders {places} image places")
        return str(text) if processor.frames is None else str(text).replace(processor.frames.place, image)

    def _answered(self, ids: Ints, places: Ints, spans: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
        """Return which tokens are the assistant's: of each answer all up to the token that ends it."""
        answered = np.zeros(len(ids), dtype=np.bool_)
        ends = np.isin(ids, self._vlm.eos)
        for begin, end in spans:
            inside = np.flatnonzero((places[:, 0] >= begin) & (places[:, 1] <= end))
            stop = np.flatnonzero(ends[inside])
            answered[inside[: stop[0] + 1] if len(stop) else inside] = True
        return answered


def _read_image(path: Path | None) -> Frame:
    data = Path(str(path)).read_bytes()
    if data.startswith(JPEG_START):
        # Of a user's own file, which may take its time.
        return decode_jpeg(data, limit_s=math.inf)
    with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels exceed the limit of {MAX_PIXELS} pixels")
        return np.asarray(turned(image.convert("RGB")))
