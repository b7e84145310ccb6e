"""Step latency of this checkout and another one, frame by frame in one run: did a change make anything slower?

Each checkout decodes in a process of its own, with an edge and a verifier of its own, over real sockets and on this
machine's own times. They take turns on every frame and mode, in changing order, and the other one waits meanwhile.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from edge_drafter import Mode
from evaluation.experiment.command import add_save, settings_of, write_result
from evaluation.experiment.questions import add_questions, warmed_up
from evaluation.experiment.run import Question
from evaluation.figures import median_interval
from evaluation.setting import add_pair, machine
from spec_vlm_nav.graph import PROJECT

WARM_UP = 2
ROS_PACKAGE = Path("ros_ws/src/spec_vlm_nav")
CHILD = """
import base64, json, sys
from pathlib import Path
from edge_drafter.decoder import EdgeConfig, EdgeDecoder
from evaluation.setting import CONNECT_LIMIT_S, verifier
target, draft, dtype, tokens = json.loads(sys.stdin.readline())
with verifier(Path(target), "--dtype", dtype) as address:
    edge = EdgeDecoder(EdgeConfig(Path(draft), address, dtype=dtype, max_tokens=tokens, resume_s=CONNECT_LIMIT_S))
    for line in sys.stdin:
        prompt, jpeg, mode = json.loads(line)
        result = edge.decode(prompt, base64.b64decode(jpeg), mode=mode)
        print(json.dumps([result.stats.total_s, list(result.tokens)]), flush=True)
    edge.close()
"""


class Checkout:
    """The code of one checkout at work; use as a context manager. Raises ValueError for a folder that is none."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        if not (folder / ROS_PACKAGE).is_dir() or not (folder / "speculation").is_dir():
            raise ValueError(f"--with {folder}: no checkout of this project")
        # Only the code differs: both take this machine's libraries and the same models.
        paths = os.pathsep.join([str(folder), str(folder / ROS_PACKAGE), os.environ.get("PYTHONPATH", "")])
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say([str(options.target_model), str(options.draft_model), options.dtype, options.max_tokens])

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)

    def decode(self, question: Question, mode: str) -> tuple[float, list[int]]:
        """Return the seconds and the tokens of an answer. Raises ValueError where the checkout's code failed."""
        self._say([question.prompt, base64.b64encode(question.jpeg).decode(), mode])
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise ValueError(f"{self.folder}: its code failed; what it said stands above")
        seconds, tokens = json.loads(line)
        return float(seconds), list(tokens)

    def _say(self, words: list[Any]) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.against", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--with", dest="other", type=Path, required=True, metavar="DIR", help="the other checkout")
    line.add_argument("--steps", type=int, default=60, help="frames, each decoded in every mode (default: 60)")
    modes = [mode.value for mode in Mode if mode is not Mode.SERVER_SD]
    line.add_argument("--modes", nargs="+", default=["cloud", "sd", "full"], choices=modes)
    add_pair(line)
    add_questions(line)
    add_save(line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    times: dict[str, tuple[list[float], list[float]]] = {mode: ([], []) for mode in options.modes}
    different = 0
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        before, asked = warmed_up(options, options.steps, WARM_UP)
        with Checkout(PROJECT, options) as this, Checkout(options.other.resolve(), options) as other:
            sides = (this, other)
            for mode in options.modes:
                for question in before:
                    for side in sides:
                        side.decode(question, mode)
            for index, question in enumerate(tqdm(asked, unit="frame", disable=None)):
                for turn, mode in enumerate(options.modes):
                    answers = []
                    for place in (0, 1) if (index + turn) % 2 == 0 else (1, 0):
                        seconds, tokens = sides[place].decode(question, mode)
                        times[mode][place].append(seconds)
                        answers.append(tokens)
                    different += answers[0] != answers[1]
    except ValueError as error:
        print(f"against: {error}", file=sys.stderr)
        return 2
    rows = {mode: _row(*sides) for mode, sides in times.items()}
    print(
        f"{options.steps} frames ({options.frames}); this checkout, the other, how many times as fast (95 % interval)"
    )
    for mode, row in rows.items():
        low, middle, high = row["faster"]
        here, there = (
            f"{1e3 * at[1]:.1f} ms ({1e3 * at[0]:.1f} to {1e3 * at[2]:.1f})" for at in (row["this"], row["other"])
        )
        print(f"{mode:>10}  {here:>28}  {there:>28}  {middle:.3f} ({low:.3f} to {high:.3f})")
    print(f"answers that differ: {different}\n{machine()}")
    if options.save:
        settings = settings_of(options, "save", "other")
        write_result("against", {"settings": settings, "machine": machine(), "modes": rows, "different": different})
    return 0


def _row(this: list[float], other: list[float]) -> dict[str, list[float]]:
    """Return least, median and largest seconds of both, and the `median_interval` of their ratio frame by frame."""
    return {
        "this": [min(this), median(this), max(this)],
        "other": [min(other), median(other), max(other)],
        "faster": list(median_interval([there / here for here, there in zip(this, other, strict=True)])),
    }


if __name__ == "__main__":
    sys.exit(main())
