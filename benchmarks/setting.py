"""What the decoding benchmarks share: frames with questions, a verifier process, the machine in a line."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results"
HELD_OUT_SEED = 1_000_000
"""Rooms from this seed on are never trained on."""
FRAMES_PER_ROOM = 10
START_LIMIT_S = 120.0
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


def _noise(count: int, seed: int) -> Iterator[Question]:
    dice = np.random.default_rng([seed, 1])
    for _ in range(count):
        _, data = cv2.imencode(".jpg", dice.integers(0, 256, (224, 224, 3), dtype=np.uint8))
        yield Question("find the silver bottle", bytes(data))


def _rooms(count: int, seed: int) -> Iterator[Question]:
    from simulation.dataset import sample_frames
    from simulation.scene import Difficulty

    dice = np.random.default_rng([seed, 2])
    made = 0
    for room in range(HELD_OUT_SEED + 1000 * seed, HELD_OUT_SEED + 1000 * seed + count):
        for frame in sample_frames(room, Difficulty.MIDDLE, FRAMES_PER_ROOM):
            if made == count:
                return
            made += 1
            # Most questions are about something out of view and have one answer; half of these have another.
            visible = {index for index, sighting in enumerate(frame.sightings) if sighting.visible}
            seen = [question for question in frame.questions if question.object_index in visible]
            pool = seen if seen and dice.random() < 0.5 else frame.questions
            yield Question(f"find the {pool[int(dice.integers(len(pool)))].target.text}", frame.jpeg)


@contextmanager
def verifier(model: Path, *flags: str) -> Iterator[str]:
    """Run a verifier process and yield its address once it serves. Raises RuntimeError, with its words, if it ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "cloud_verifier", "serve", "--model", str(model), "--bind", address, *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "verifier.log"
        with log.open("w") as sink:
            process = subprocess.Popen(
                command, cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)}, stderr=sink
            )
        try:
            _wait_until_serving(process, log)
            yield address
            if process.poll() is not None:
                raise RuntimeError(f"the verifier ended by itself: {log.read_text()[-1000:].strip()}")
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_serving(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_LIMIT_S
    while " serving " not in log.read_text():
        if process.poll() is not None:
            raise RuntimeError(f"the verifier did not start: {log.read_text()[-1000:].strip()}")
        if time.monotonic() > end:
            raise RuntimeError(f"the verifier did not start within {START_LIMIT_S:g} s")
        time.sleep(0.05)


def machine() -> str:
    """Return what the figures were measured on."""
    import torch

    name = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [line.partition(":")[2].strip() for line in cpu_info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{name}, {os.cpu_count()} cores, load {load} at the end; {versions}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned text, the first column left, the others right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
