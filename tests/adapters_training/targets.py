"""Tiny targets and data for adapter trainings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file

from adapters_training.encoding import Encoded
from adapters_training.exits import ExitsConfig
from adapters_training.fed_head.training import FedHeadConfig
from adapters_training.frozen_target.batches import Batch, collate
from adapters_training.packing import IGNORE
from adapters_training.settings import make
from adapters_training.text_draft import TextDraftConfig
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession

S = TypeVar("S", bound=msgspec.Struct)

SAID = ("I see the red ball ahead, on the left.", "Action: turn left small", "Action: stop", "I see the blue chair.")


def chats(path: Path, count: int = 24) -> Path:
    """Write a ShareGPT file of short conversations and return it."""
    records = [
        {
            "conversations": [
                {"from": "human", "value": f"find the red ball {number % 5}"},
                {"from": "gpt", "value": f"{SAID[number % 4]} {SAID[number // 4 % 4]}"},
                {"from": "human", "value": "and now?"},
                {"from": "gpt", "value": SAID[number % 3]},
            ]
        }
        for number in range(count)
    ]
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def short(kind: type[S], **own: Any) -> Callable[..., S]:
    """Return what makes settings of a short training on the CPU, from the paths of target, data and output."""
    values = {"batch": 4, "context": 96, "learning_rate": 1e-2, "device": "cpu", "held_out_samples": 8, "seed": 5} | own

    def config(target: Path, data: Path, out: Path, **changes: Any) -> S:
        return make(kind, {"target": str(target), "data": [str(data)], "out": str(out), **values, **changes})

    return config


of_exits = short(ExitsConfig, rank=8, steps=30, batch=2)
of_a_head = short(FedHeadConfig, steps=12, size=16, width=32, heads=2, depths=3, prompt_tokens=4, gamma=3)
of_a_draft = short(TextDraftConfig, steps=8, learning_rate=5e-3, width=32, depth=2, heads=2, gamma=3, head_tokens=7)


def own_answers(vlm: Vlm, questions: Sequence[tuple[str, bytes | None]], count: int) -> Batch:
    """Return the target's own answers as a batch of its very tokens, which text does not always keep."""
    rows = []
    for question, image in questions:
        inputs = prepare(vlm, question, image)
        answer = [token for token, _ in VlmSession(vlm, 512).greedy(question, image, count)]
        ids = np.concatenate([inputs.ids, answer]).astype(np.int64)
        labels = np.full(len(ids), IGNORE)
        labels[len(inputs.ids) - 1 : -1] = answer
        behind = np.tile(np.arange(len(inputs.ids), len(ids)) + inputs.delta, (len(inputs.positions), 1))
        positions = np.concatenate([inputs.positions, behind], axis=1)
        grid = inputs.grids[0] if inputs.grids else None
        rows.append(Encoded(ids, labels, positions, inputs.pixel_values, grid, False))
    return collate(rows, 0)


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Return all weights in the files of a folder."""
    files = sorted(out.glob("*.safetensors"))
    return {f"{file.name}/{name}": weight for file in files for name, weight in load_file(str(file)).items()}
