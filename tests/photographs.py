"""A folder in MMSpec's form whose photographs scikit-learn brings: nothing is downloaded or kept here."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

TASKS = {
    "general vqa": ("What is in the middle of the picture?",),
    "image captioning": ("Describe this image in detail.",),
    "multi-turn conversation": ("What do you see?", "And what is behind it?", "Which of the two is larger?"),
}
PICTURES = ("china.jpg", "flower.jpg", "china.jpg")
"""The photograph of each task."""


def write_mmspec(folder: Path) -> Path:
    """Write a folder in MMSpec's form with one sample a task, and return it; skips the test without scikit-learn."""
    pytest.importorskip("sklearn", reason="scikit-learn ships the photographs")
    (folder / "images").mkdir(parents=True)
    lines = []
    for name, (task, turns) in zip(PICTURES, TASKS.items(), strict=True):
        shutil.copy(str(files("sklearn.datasets.images") / name), folder / "images" / name)
        sample = {"id": task, "image": name, "turns": turns, "category": "own", "topic": task}
        lines.append(json.dumps(sample))
    (folder / "mmspec.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
