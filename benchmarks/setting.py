"""What the decoding benchmarks share: frames with questions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from spec_vlm_nav.graph import PROJECT

RESULTS = PROJECT / "benchmarks" / "results"
FRAMES_PER_ROOM = 10
FRAME_SOURCES = ("simulation", "random")


@dataclass(frozen=True)
class Question:
    """One step: what is asked about which JPEG."""

    prompt: str
    jpeg: bytes


def questions(source: str, count: int, seed: int = 0) -> list[Question]:
    """Return `count` questions: held-out rooms of the simulator, or noise that needs no simulator (tiny models)."""
    if source == "random":
        return list(_noise(count, seed))
    if source == "simulation":
        return list(_rooms(count, seed))
    raise ValueError(f"frames {source!r} are unknown; choose {', '.join(FRAME_SOURCES)}")


def settings_of(options: argparse.Namespace, *outputs: str) -> dict[str, str]:
    """Return what a result says about its run: all options but the `outputs`, paths as seen from the project."""

    def told(value: object) -> str:
        inside = isinstance(value, Path) and value.is_absolute() and value.is_relative_to(PROJECT)
        return str(value.relative_to(PROJECT) if isinstance(value, Path) and inside else value)

    return {name: told(value) for name, value in vars(options).items() if name not in outputs}


def _noise(count: int, seed: int) -> Iterator[Question]:
    dice = np.random.default_rng([seed, 1])
    for _ in range(count):
        _, data = cv2.imencode(".jpg", dice.integers(0, 256, (224, 224, 3), dtype=np.uint8))
        yield Question("find the silver bottle", bytes(data))


def _rooms(count: int, seed: int) -> Iterator[Question]:
    from simulation.dataset import sample_frames
    from simulation.scene import UNSEEN_SEED, Difficulty

    dice = np.random.default_rng([seed, 2])
    made = 0
    for room in range(UNSEEN_SEED + 1000 * seed, UNSEEN_SEED + 1000 * seed + count):
        for frame in sample_frames(room, Difficulty.MIDDLE, FRAMES_PER_ROOM):
            if made == count:
                return
            made += 1
            # Most questions are about something out of view and have one answer; half of these have another.
            visible = {index for index, sighting in enumerate(frame.sightings) if sighting.visible}
            seen = [question for question in frame.questions if question.object_index in visible]
            pool = seen if seen and dice.random() < 0.5 else frame.questions
            yield Question(f"find the {pool[int(dice.integers(len(pool)))].target.text}", frame.jpeg)
