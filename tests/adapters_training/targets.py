"""Tiny targets and data for adapter trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file

from adapters_training.exits import ExitsConfig
from adapters_training.settings import make
from tests.models import frame

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


def pictures(folder: Path, count: int = 6) -> Path:
    """Write a LLaVA file with an image a record, one of them missing, and return it."""
    records = []
    for number in range(count):
        Image.fromarray(frame(number, 60 + 20 * number)).save(folder / f"{number}.png")
        asked = {"from": "human", "value": f"<image>\nHow far is the red ball {number}?"}
        records.append({"image": f"{number}.png", "conversations": [asked, {"from": "gpt", "value": SAID[number % 4]}]})
    records.append({**records[0], "image": "missing.png"})
    path = folder / "vqa.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def config(target: Path, data: Path, out: Path, **changes: Any) -> ExitsConfig:
    """Return settings of a short training on the CPU."""
    values = {
        "target": str(target), "data": [str(data)], "out": str(out), "rank": 8, "steps": 30, "batch": 2,
        "context": 96, "learning_rate": 1e-2, "device": "cpu", "held_out_samples": 8, "seed": 5,
    }  # fmt: skip
    return make(ExitsConfig, values | changes)


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Return all weights in the files of a folder."""
    files = sorted(out.glob("*.safetensors"))
    return {f"{file.name}/{name}": weight for file in files for name, weight in load_file(str(file)).items()}
