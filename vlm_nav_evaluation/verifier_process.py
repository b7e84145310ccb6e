"""A verifier in a process of its own, and the flags that a command's options give it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_drafter import Mode
from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.runner import free_address
from speculation.predictor import OFF
from vlm_nav_evaluation.experiment.mmspec import is_mmspec
from vlm_nav_evaluation.experiment.prompts import in_words

START_LIMIT_S = 120.0
CONNECT_LIMIT_S, SILENCE_S = 20.0, 10.0
"""More patient than a robot: on a busy machine a verifier may pause for longer than a robot would wait."""
TEXT_CAPACITY = 2048
"""Cache slots of a session on text prompts: the edge's own, where a verifier's default is made for frames."""


def capacity_of(options: argparse.Namespace) -> int:
    """Return the cache slots of a session on prompts of a file: --capacity, where a command has it."""
    return int(getattr(options, "capacity", TEXT_CAPACITY))


@contextmanager
def verifier(model: Path, *flags: str, project: Path = PROJECT) -> Iterator[str]:
    """Run a verifier process and yield its address once it serves. Raises RuntimeError, with its log, if it ends.

    project: the checkout whose code runs.
    """
    address = free_address()
    command = [sys.executable, "-m", "cloud_verifier", "serve", "--model", str(model), "--bind", address, *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "verifier.log"
        with log.open("w") as sink:
            paths = [str(project), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            process = subprocess.Popen(command, cwd=project, env=environment, stderr=sink)
        try:
            end = time.monotonic() + START_LIMIT_S
            while " serving " not in log.read_text():
                if process.poll() is not None:
                    raise RuntimeError(f"the verifier did not start: {log.read_text()[-1000:].strip()}")
                if time.monotonic() > end:
                    raise RuntimeError(f"the verifier did not start within {START_LIMIT_S:g} s")
                time.sleep(0.05)
            yield address
            if process.poll() is not None:
                raise RuntimeError(f"the verifier ended by itself: {log.read_text()[-1000:].strip()}")
        finally:
            process.terminate()
            process.wait(timeout=30)


def verifier_flags(options: argparse.Namespace, modes: Sequence[str] = ()) -> list[str]:
    """Return a verifier's flags for a command's options, as far as it has them.

    `modes` decide whether it needs a draft model beside the target.
    """
    given = {name: getattr(options, name, None) for name in ("profile", "dtype", "threads", "device", "exits")}
    if given["exits"] is not None:
        given["exits"] = Path(given["exits"]).resolve()
    flags = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    source = str(getattr(options, "frames", ""))
    if in_words(source):
        flags.append("--text-only")
    if in_words(source) or is_mmspec(source):
        flags += ["--capacity", str(capacity_of(options))]
    if Mode.SERVER_SD.value in modes:
        flags += ["--draft-model", str(options.draft_model)]
    if (head := getattr(options, "fed_head", OFF)) != OFF:
        flags += ["--fed-head", str(Path(head).resolve())]
    if (views := getattr(options, "views", 1)) > 1:
        # Several frames a question, whatever its model was trained on.
        flags += ["--frames", str(views)]
    return flags
