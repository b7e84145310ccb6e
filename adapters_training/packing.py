"""Several instructions per frame in one sequence: [image prefix][question+answer 1][question+answer 2]...

Every question sees the prefix and itself, and stands at the positions that it would have alone, so the loss is that of
separate samples (a test holds this) while the image is computed once: about 2.5 times the samples per second.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from adapters_training import wording
from adapters_training.records import CELLS, Frame, Seen, Task
from speculation.prompts import ACTIONS, Vocabulary

IGNORE = -100
SIDES = tuple(wording.SIDES)
ACTION_TEXTS = tuple(action.text for action in ACTIONS)
ACTION_WEIGHT = 2.0
"""The action is a few tokens of an answer but all that the robot does: its tokens weigh more."""
_MIRROR = {"left": "right", "right": "left", "slightly left": "slightly right", "slightly right": "slightly left"}


@dataclass(frozen=True)
class Batch:
    """One packed batch of B frames; N = image prefix + the longest row of questions and answers.

    `images` uint8 [B, H, W, 3]; `ids`, `labels` int64 [B, N] (labels are shifted: labels[i] follows ids[i]);
    `weights` float32 [B, N]; `positions` int64 [3, B, N]; `mask` bool [B, 1, N, N];
    `cells` int64 [3, B, 64]: class, colour and distance (dm) under each image token;
    `asked` int64 [Q, 2]: frame and position of the last prompt token of every question, and `facts` int64 [Q, 5] what
    is true there: side (0 = not in view, else 1 + place in SIDES), distance (dm), action, colour, class of the target.
    """

    images: np.ndarray
    ids: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    cells: torch.Tensor
    image_slice: slice
    asked: torch.Tensor
    facts: torch.Tensor


def mirror(frame: Frame) -> Frame:
    """Return the frame as a mirror would show it. A search turns left in both: it has no side."""

    def flip(cells: bytes) -> bytes:
        return np.frombuffer(cells, np.uint8).reshape(CELLS, CELLS)[:, ::-1].tobytes()

    def seen(s: Seen) -> Seen:
        return Seen(s.colour, s.object_class, _MIRROR.get(s.side, s.side), s.distance)

    def task(t: Task) -> Task:
        action = t.action
        if t.reason != "search":
            if "left" in action:
                action = action.replace("left", "right")
            elif "right" in action:
                action = action.replace("right", "left")
        return Task(t.colour, t.object_class, None if t.seen is None else seen(t.seen), action, t.reason, t.blocker)

    return Frame(
        frame.jpeg,
        flip(frame.cell_class),
        flip(frame.cell_colour),
        flip(frame.cell_distance),
        [seen(s) for s in frame.seen],
        [task(t) for t in frame.tasks],
    )


def decode_image(jpeg: bytes) -> np.ndarray:
    """Return uint8 [H, W, 3] RGB."""
    bgr = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if bgr is None:
        raise ValueError(f"a training frame of {len(jpeg)} bytes is no JPEG: make the data again")
    return np.ascontiguousarray(bgr[:, :, ::-1])


class Packer:
    """Frames -> batches, for one tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary, questions: int = 4) -> None:
        self.questions = questions
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self._pad = tokenizer.pad_token_id
        self._before = self.encode("<|im_start|>user\n<|vision_start|>")
        self._eos = [tokenizer.eos_token_id]

    def encode(self, text: str) -> list[int]:
        """Return token ids of a text, special tokens included."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def question(self, task: Task, rng: random.Random) -> list[int]:
        """Return the tokens from the image's end to the answer's begin."""
        words = wording.instruction(task, rng)
        return self.encode(f"<|vision_end|>{words}<|im_end|>\n<|im_start|>assistant\n")

    def facts(self, task: Task) -> tuple[int, ...]:
        """Return side, distance, action, colour and class of a question as numbers (see `Batch.facts`)."""
        side = 0 if task.seen is None else 1 + SIDES.index(task.seen.side)
        distance = 0 if task.seen is None else min(255, round(task.seen.distance * 10))
        colour, kind = self._vocabulary.colours.index(task.colour), self._vocabulary.classes.index(task.object_class)
        return side, distance, ACTION_TEXTS.index(task.action), colour, kind

    def choose(self, frame: Frame, rng: random.Random, limit: int) -> list[Task]:
        """Pick at most `limit` questions: visible targets first, and at most two that the frame cannot show.

        Three of four targets of a random frame are out of view; asked evenly, a model learns to look around for ever.
        """
        visible = [task for task in frame.tasks if task.seen is not None]
        hidden = [task for task in frame.tasks if task.seen is None]
        rng.shuffle(visible)
        rng.shuffle(hidden)
        chosen = visible[: limit - 1]
        return chosen + hidden[: min(2, limit - len(chosen))]

    def batch(self, frames: Sequence[Frame], rng: random.Random, augment: bool = True, answers: bool = True) -> Batch:
        """Pack frames; with `augment` half of them are mirrored and brightness varies.

        Without `answers` the questions stand alone, as many as there are, for the losses that need no words.
        """
        images, rows = [], []
        cells = np.zeros((3, len(frames), CELLS * CELLS), np.int64)
        for index, original in enumerate(frames):
            flipped = augment and rng.random() < 0.5
            frame = mirror(original) if flipped else original
            image = decode_image(frame.jpeg)
            if flipped:
                image = np.ascontiguousarray(image[:, ::-1])
            if augment:
                image = np.clip(image * rng.uniform(0.85, 1.15) + rng.uniform(-10, 10), 0, 255).astype(np.uint8)
            images.append(image)
            for plane, data in enumerate((frame.cell_class, frame.cell_colour, frame.cell_distance)):
                cells[plane, index] = np.frombuffer(data, np.uint8)
            tasks = self.choose(frame, rng, self.questions if answers else len(frame.tasks))
            rows.append(
                [(self.question(task, rng), self._answer(frame, task, rng) if answers else [], task) for task in tasks]
            )
        return self._assemble(np.stack(images), rows, torch.from_numpy(cells))

    def _answer(self, frame: Frame, task: Task, rng: random.Random) -> list[int]:
        return self.encode(wording.answer(frame, task, rng)) + self._eos

    def _assemble(self, images: np.ndarray, rows: list[list[tuple[list[int], list[int], Task]]],
                  cells: torch.Tensor) -> Batch:  # fmt: skip
        start = len(self._before)
        prefix = start + CELLS * CELLS
        total = prefix + max(sum(len(q) + len(a) for q, a, _ in row) for row in rows)
        ids = torch.full((len(rows), total), self._pad)
        labels = torch.full((len(rows), total), IGNORE)
        weights = torch.zeros(len(rows), total)
        blocks = torch.zeros(len(rows), total, dtype=torch.long)
        offsets = torch.zeros(len(rows), total, dtype=torch.long)
        ids[:, :prefix] = torch.tensor(self._before + [self._image] * (CELLS * CELLS))
        blocks[:, prefix:] = max(len(row) for row in rows) + 1
        asked: list[tuple[int, int]] = []
        facts: list[tuple[int, ...]] = []
        for b, row in enumerate(rows):
            at = prefix
            for k, (question, answer, task) in enumerate(row):
                end = at + len(question) + len(answer)
                ids[b, at:end] = torch.tensor(question + answer)
                blocks[b, at:end] = k + 1
                offsets[b, at:end] = torch.arange(end - at)
                first = at + len(question) - 1
                asked.append((b, first))
                facts.append(self.facts(task))
                if answer:
                    labels[b, first : end - 1] = torch.tensor(answer)
                    weights[b, first : end - 1] = 1.0
                    action = len(self.encode(f" {task.action}")) + 1
                    weights[b, end - 1 - action : end - 1] = ACTION_WEIGHT
                at = end
        positions = packed_positions(start, offsets)
        mask = packed_mask(blocks)
        tensors = torch.tensor(asked), torch.tensor(facts)
        return Batch(images, ids, labels, weights, positions, mask, cells, slice(start, prefix), *tensors)


def packed_positions(start: int, offsets: torch.Tensor) -> torch.Tensor:
    """Return M-RoPE positions int64 [3, B, N]: text up to `start`, CELLS x CELLS image tokens, then the questions,
    each token `offsets` [B, N] tokens after its question's begin, as if it stood alone."""
    grid = torch.arange(CELLS)
    zeros = torch.zeros(CELLS * CELLS, dtype=torch.long)
    image = start + torch.stack([zeros, grid.repeat_interleave(CELLS), grid.repeat(CELLS)])
    positions = (start + CELLS + offsets).expand(3, *offsets.shape).clone()
    positions[:, :, :start] = torch.arange(start)
    positions[:, :, start : start + CELLS * CELLS] = image[:, None]
    return positions


def packed_mask(blocks: torch.Tensor) -> torch.Tensor:
    """Return the boolean attention mask [B, 1, N, N]: causal, and block k > 0 sees block 0 (the image) and itself."""
    same = (blocks[:, :, None] == blocks[:, None, :]) | (blocks[:, None, :] == 0)
    total = blocks.shape[1]
    return (same & torch.ones(total, total, dtype=torch.bool).tril())[:, None]
