"""Several instructions per frame in one sequence: [image prefix][question+answer 1][question+answer 2]...

Every question sees the prefix and itself, and stands at the positions that it would have alone, so the loss is that of
separate samples (a test holds this) while the image is computed once: about 2.5 times the samples per second.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import msgspec
import numpy as np
import torch

from adapters_training import wording
from adapters_training.batches import TensorFields
from adapters_training.records import CELLS, Door, Frame, Seen, Task
from speculation.language.prompts import ACTION_MARK, ACTIONS, ResponseOrder, Vocabulary, to_past
from speculation.language.search_memory import SIDE_PHRASES, mirrored
from speculation.vlm.processing import Processor
from vlm_nav_simulation.oracle import Reason
from vlm_nav_simulation.search_teacher import LARGE_TURNS, search_turn

IGNORE = -100
PADDING = -1
"""The block of what stands behind a row's last question."""
PATCHES = 2 * CELLS
"""Patches along each side of a frame, of which four make an image token."""
SIDES = tuple(SIDE_PHRASES)
ACTION_TEXTS = tuple(action.text for action in ACTIONS)
REASONS = tuple(reason.value for reason in Reason)
ACTION_WEIGHT = 2.0
"""The action is a few tokens of an answer but all that the robot does: its tokens weigh more."""
SEARCHING = "search"
"""Why a task has the action that most of those out of view have: turn on and look."""
EXPLORING = "explore"
"""Why a task walks on within a room, or turns on until its way is in view."""
_TURNS_ON = tuple(action.text for action in LARGE_TURNS)
_TURNS_LAST = 0.6
_ALIKE_FIRST = 0.35
_MIRROR = {"left": "right", "right": "left", "slightly left": "slightly right", "slightly right": "slightly left"}


@dataclass(frozen=True)
class Batch(TensorFields):
    """One packed batch of B frames; N = image prefix + the longest row of questions and answers."""

    images: np.ndarray
    """uint8 [B, H, W, 3]."""
    ids: torch.Tensor
    """int64 [B, N]."""
    labels: torch.Tensor
    """int64 [B, N], shifted: labels[i] follows ids[i]."""
    weights: torch.Tensor
    """float32 [B, N]."""
    positions: torch.Tensor
    """int64 [3, B, N]."""
    blocks: torch.Tensor
    """int64 [B, N]: 0 in the prefix, k in question k, PADDING behind the last one."""
    cells: torch.Tensor
    """int64 [4, B, 64]: class, colour and distance (dm) under each image token, and how far (dm) it is to the nearest
    thing of any kind in its column, 0 where that was not measured."""
    image_slice: slice
    asked: torch.Tensor
    """int64 [Q, 2]: frame and position of the last prompt token of every question."""
    facts: torch.Tensor
    """int64 [Q, 6], the truth about each question: side (0 = not in view, else 1 + place in SIDES), distance (dm),
    action, colour and class of the target, and the teacher's reason; IGNORE for what nobody can know."""
    pixels: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """float32 [B * PATCHES * PATCHES, 1176], the images as the vision tower reads them; empty until `with_pixels`."""

    @property
    def mask(self) -> torch.Tensor:
        """bool [B, 1, N, N], what each token sees: causal, and a block sees block 0 (the image) and itself."""
        blocks, total = self.blocks, self.blocks.shape[1]
        same = (blocks[:, :, None] == blocks[:, None, :]) | (blocks[:, None, :] == 0)
        return (same & torch.ones(total, total, dtype=torch.bool, device=blocks.device).tril())[:, None]

    def with_pixels(self, processor: Processor) -> Batch:
        """Return the batch with the patches of its images."""
        assert processor.frames is not None, "the pair sees images"
        return replace(self, pixels=torch.from_numpy(processor.frames.patchify(self.images)[0]))


@dataclass(frozen=True)
class Asked:
    """One question as tokens, its answer's (none where nothing is answered) and which of these name the action."""

    question: list[int]
    answer: list[int]
    action: slice
    task: Task


def mirror(frame: Frame) -> Frame:
    """Return the frame as a mirror would show it. Only a search that begins turns left in both."""

    def flip(cells: bytes) -> bytes:
        return np.frombuffer(cells, np.uint8).reshape(CELLS, CELLS)[:, ::-1].tobytes()

    def seen(s: Seen) -> Seen:
        return msgspec.structs.replace(s, side=_MIRROR.get(s.side, s.side))

    def task(t: Task) -> Task:
        done = tuple(map(mirrored, t.done))
        # what was done is as the mirror shows it, and so is a search that goes on from there
        past = [entry for entry in map(to_past, done) if entry is not None]
        turns_on = t.reason == SEARCHING or (t.reason == EXPLORING and t.action in _TURNS_ON)
        action = search_turn(past).text if turns_on else mirrored(t.action)
        memory, shown = tuple(map(mirrored, t.memory)), None if t.seen is None else seen(t.seen)
        query = mirrored(t.query)
        return msgspec.structs.replace(t, seen=shown, action=action, done=done, memory=memory, query=query)

    return Frame(
        frame.jpeg,
        flip(frame.cell_class),
        flip(frame.cell_colour),
        flip(frame.cell_distance),
        [seen(s) for s in frame.seen],
        [task(t) for t in frame.tasks],
        tuple(Door(_MIRROR.get(door.side, door.side), door.distance) for door in frame.doors),
        frame.free[::-1],
    )


def decode_image(jpeg: bytes) -> np.ndarray:
    """Return uint8 [H, W, 3] RGB."""
    bgr = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if bgr is None:
        raise ValueError(f"a training frame of {len(jpeg)} bytes is no JPEG: make the data again")
    return np.ascontiguousarray(bgr[:, :, ::-1])


def choose(tasks: Sequence[Task], rng: random.Random, limit: int) -> list[Task]:
    """Pick at most `limit` questions: the last, which a walk is for, then visible targets, and at most two out of view.

    What a walk is for is what a robot is asked on it, with the memory that it has then. Three of four targets of a
    random frame are out of view, and most of these ask for one more turn; asked evenly, a model learns to look around
    for ever. Of those out of view, look-alikes of what is in view come first in one case of three: a model that is
    asked for the purple mug in front of a purple ball has to look at both, colour and class.
    """
    visible = [task for task in tasks[:-1] if task.seen is not None]
    hidden = [task for task in tasks[:-1] if task.seen is None]
    rng.shuffle(visible)
    rng.shuffle(hidden)
    hidden.sort(key=lambda task: task.reason == SEARCHING and rng.random() < _TURNS_LAST)
    hidden.sort(key=lambda task: not (looks_alike(task, visible) and rng.random() < _ALIKE_FIRST))
    chosen = list(tasks[-1:])
    out_of_view = sum(task.seen is None for task in chosen)
    chosen += visible[: max(0, limit - 2 + out_of_view)]
    return chosen + hidden[: min(2 - out_of_view, limit - len(chosen))]


def looks_alike(task: Task, visible: Sequence[Task]) -> bool:
    """Return whether something in view has the colour or the class that is asked for, but not both.

    A question that names one of them alone, or a place, has no look-alikes.
    """
    if not wording.names_both(task):
        return False
    pairs = [(other.seen.colour, other.seen.object_class) for other in visible if other.seen is not None]
    return any((task.colour == colour) is not (task.object_class == kind) for colour, kind in pairs)


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

    def question(self, task: Task, order: ResponseOrder = ResponseOrder.REASON_FIRST) -> list[int]:
        """Return the tokens from the image's end to the answer's begin."""
        words = task.prompt or wording.prompt(task, order, self._vocabulary.form)
        return self.encode(f"<|vision_end|>{words}<|im_end|>\n<|im_start|>assistant\n")

    def facts(self, task: Task) -> tuple[int, ...]:
        """Return side, distance, action, colour, class and reason of a question as numbers (see `Batch.facts`)."""
        side = 0 if task.seen is None else 1 + SIDES.index(task.seen.side)
        distance = 0 if task.seen is None else min(255, round(task.seen.distance * 10))
        colour, kind = self._vocabulary.colours.index(task.colour), self._vocabulary.classes.index(task.object_class)
        if task.seen is None and task.query:
            # What is out of view has only the words that were asked for.
            colour = colour if task.colour in task.query else IGNORE
            kind = kind if task.object_class in task.query else IGNORE
        return side, distance, ACTION_TEXTS.index(task.action), colour, kind, REASONS.index(task.reason)

    def batch(self, frames: Sequence[Frame], rng: random.Random, augment: bool = True, answers: bool = True) -> Batch:
        """Pack frames; with `augment` half of them are mirrored and brightness varies.

        Without `answers` the questions stand alone, as many as there are, for the losses that need no words.
        """
        images, rows = [], []
        cells = np.zeros((4, len(frames), CELLS * CELLS), np.int64)
        for index, original in enumerate(frames):
            # a model's own words cannot be mirrored: it need not see what its mirror image shows
            flipped = augment and rng.random() < 0.5 and not any(task.answer for task in original.tasks)
            frame = mirror(original) if flipped else original
            image = decode_image(frame.jpeg)
            if flipped:
                image = np.ascontiguousarray(image[:, ::-1])
            if augment:
                image = np.clip(image * rng.uniform(0.85, 1.15) + rng.uniform(-10, 10), 0, 255).astype(np.uint8)
            images.append(image)
            for plane, data in enumerate((frame.cell_class, frame.cell_colour, frame.cell_distance)):
                cells[plane, index] = np.frombuffer(data, np.uint8)
            if frame.free:
                cells[3, index] = np.tile(np.frombuffer(frame.free, np.uint8), CELLS)
            tasks = [task for task in frame.tasks if task.answer] or [
                task for task in frame.tasks if wording.fits(task, self._vocabulary.form)
            ]
            tasks = choose(tasks, rng, self.questions if answers else len(frame.tasks))
            rows.append([self._asked(frame, task, rng, answers) for task in tasks])
        return self._assemble(np.stack(images), rows, torch.from_numpy(cells))

    def _asked(self, frame: Frame, task: Task, rng: random.Random, answers: bool) -> Asked:
        """Return one question; its answer is the target's own where the frame holds one, else one of the oracle's."""
        order = wording.random_order(rng)
        if task.answer:
            order = ResponseOrder.ACTION_FIRST if task.answer.startswith(ACTION_MARK) else ResponseOrder.REASON_FIRST
        question = self.question(task, order)
        if not answers:
            return Asked(question, [], slice(0, 0), task)
        text = task.answer or wording.answer(frame, task, rng, order)
        before, _, after = text.rpartition(f"{ACTION_MARK} ")
        begin, end = len(self.encode(f"{before}{ACTION_MARK}")), len(self.encode(f" {after.partition(chr(10))[0]}"))
        return Asked(question, self.encode(text) + self._eos, slice(begin, begin + end), task)

    def _assemble(self, images: np.ndarray, rows: list[list[Asked]], cells: torch.Tensor) -> Batch:
        start = len(self._before)
        prefix = start + CELLS * CELLS
        total = prefix + max(sum(len(asked.question) + len(asked.answer) for asked in row) for row in rows)
        ids = torch.full((len(rows), total), self._pad)
        labels = torch.full((len(rows), total), IGNORE)
        weights = torch.zeros(len(rows), total)
        blocks = torch.zeros(len(rows), total, dtype=torch.long)
        offsets = torch.zeros(len(rows), total, dtype=torch.long)
        ids[:, :prefix] = torch.tensor(self._before + [self._image] * (CELLS * CELLS))
        blocks[:, prefix:] = PADDING
        asked: list[tuple[int, int]] = []
        facts: list[tuple[int, ...]] = []
        for b, row in enumerate(rows):
            at = prefix
            for k, one in enumerate(row):
                end = at + len(one.question) + len(one.answer)
                ids[b, at:end] = torch.tensor(one.question + one.answer)
                blocks[b, at:end] = k + 1
                offsets[b, at:end] = torch.arange(end - at)
                first = at + len(one.question) - 1
                asked.append((b, first))
                facts.append(self.facts(one.task))
                if one.answer:
                    labels[b, first : end - 1] = torch.tensor(one.answer)
                    weights[b, first : end - 1] = 1.0
                    weights[b, first + one.action.start : first + one.action.stop] = ACTION_WEIGHT
                at = end
        positions = packed_positions(start, offsets)
        tensors = torch.tensor(asked), torch.tensor(facts)
        return Batch(images, ids, labels, weights, positions, blocks, cells, slice(start, prefix), *tensors)


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
