"""Write a model folder with its weights in 8 bits, half the bytes, and measure what that costs in answers.

Robot and verifier load such a folder as any other; plain transformers refuses it. The stored model is a model of its
own: exits, fed heads and cost profiles of the original do not belong to it, train and measure them on this folder.

example:
  python -m adapters_training store --model models/target --out out/target-int8 --held-out out/held-out

time: a second, and about 1.5 s a frame of --held-out on a CPU core
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from adapters_training import wording
from adapters_training.command import Command
from adapters_training.evaluate import MAX_TOKENS, pick
from adapters_training.files import filling
from adapters_training.records import Frame, Task, read_frames
from speculation.language.prompts import ResponseOrder, parse_answer
from speculation.vlm.folder import weight_files
from speculation.vlm.load import load_vlm
from speculation.vlm.memory import gigabytes
from speculation.vlm.session import VlmSession
from speculation.vlm.storage import store

CAPACITY = 512


def answers(folder: Path, questions: list[tuple[Frame, Task]]) -> list[str]:
    """Return a model's greedy answers without a grammar, every other one with its action first."""
    session, form = VlmSession(load_vlm(folder), CAPACITY), wording.form_of(folder)
    orders = list(ResponseOrder)
    return [
        session.answer(wording.prompt(task, orders[number % len(orders)], form), frame.jpeg, MAX_TOKENS)
        for number, (frame, task) in enumerate(questions)
    ]


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored."""

    model: Annotated[Path, Meta(description="model folder")]
    out: Annotated[Path, Meta(description="folder to write; it must not exist")]
    held_out: Annotated[
        Path | None, Meta(description="frames of 'data --held-out': both models are asked about them")
    ] = None
    count: Annotated[int, Meta(ge=1, description="frames asked about")] = 100


def _run(config: StoreConfig, _: argparse.Namespace) -> int:
    """Store, and print sizes and how many answers stay equal. Raises ValueError or OSError for folders of no use."""
    model, out = config.model, config.out
    if out.exists():
        raise ValueError(f"--out {out} exists already; give another folder")
    questions: list[tuple[Frame, Task]] = []
    if config.held_out is not None:
        questions = pick(list(read_frames(config.held_out)), config.count, form=wording.form_of(model))
        if not questions:
            raise ValueError(f"--held-out {config.held_out} holds no frames; make some with 'data --held-out'")
    with filling(out) as part:
        store(model, part)
    sizes = [sum(path.stat().st_size for path in weight_files(folder)) for folder in (model, out)]
    print(f"{out}: {gigabytes(sizes[1])} of weights, {gigabytes(sizes[0])} in {model}")
    if questions:
        before, after = answers(model, questions), answers(out, questions)
        pairs = list(zip(before, after, strict=True))
        same = sum(one == other for one, other in pairs)
        actions = sum(parse_answer(one).action == parse_answer(other).action for one, other in pairs)
        print(f"of {len(pairs)} greedy answers {same} are equal to the last character, {actions} in their action")
    return 0


COMMAND = Command("store", "a model folder with its weights in 8 bits", __doc__, StoreConfig, _run)
