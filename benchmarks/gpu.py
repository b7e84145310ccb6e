"""All that a GPU has to show, in one run of twelve minutes at most: does it work, is it exact, and what does it cost?

    make gpu                                          # or python -m benchmarks.gpu
    python -m benchmarks.gpu --device cpu --quick     # the same stages on tiny shapes, to try the program

Stages run one after another, each in a process of its own with a time of its own; what one leaves over the next may
use. What a stage prints is in a file of --out as it is printed, and summary.json, with machine, driver and commit, is
written anew after each, so that a run that is cut off leaves what it had. Models of published sizes have random
weights: times do not depend on those.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from adapters_training.devices import machine
from adapters_training.verifier_profile.command import configurations, profile_of, report
from adapters_training.verifier_profile.configurations import held_out, training
from adapters_training.verifier_profile.measure import ProfileConfig
from benchmarks.shapes import SHAPES, build
from spec_vlm_nav.graph import PROJECT
from speculation.pass_cost import COST_FILE
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.results import commit, settings_of, shipped_pair, write_json

DRAFT, TARGETS = "qwen3-vl-2b", ("qwen2.5-vl-7b", "qwen3-vl-8b")
"""Sizes that are timed; the first target is profiled, and its pass has a place on the break-even map."""
TERM_S = 5.0
"""A stage that is out of time has so long to end what it started."""


@dataclass(frozen=True)
class Stage:
    """A command line with the seconds that it may take."""

    name: str
    seconds: float
    words: Callable[[argparse.Namespace], list[str]]
    """Returns the command's words behind the interpreter. Raises OSError, ValueError or LookupError where what it needs
    of an earlier stage is not there."""


def _tests(options: argparse.Namespace) -> list[str]:
    """Return pytest's command over the files with tests that need a GPU: collecting all files takes a minute."""
    marked = [path for path in sorted((PROJECT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    names = [str(path.relative_to(PROJECT)) for path in marked]
    return ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *names]


def _exactness(dtype: str, options: argparse.Namespace) -> list[str]:
    steps, fewer = ("1", ["--modes", "sd,full"]) if options.quick else ("40", [])
    journal = ["--journal", str(options.out / f"exactness_{dtype}_answers"), "--restart"]
    given = ["--steps", steps, "--device", options.device, "--dtype", dtype]
    return ["-m", "benchmarks.exactness", *given, *fewer, *journal]


def _timings(preset: str, captured: bool, options: argparse.Namespace) -> list[str]:
    name = f"{preset}_{'graphs' if captured else 'plain'}"
    sizes = ["--batches", "1", "4", "8", "16", "--lengths", "1", "2", "5", "17", "41"]
    if options.quick:
        sizes = ["--batches", "1", "2", "--lengths", "1", "5", "--frame", "56", "84", "--repeats", "2"]
    preset = "tiny" if options.quick else preset
    line = ["-m", "benchmarks.model_timings", "--preset", preset, "--device", options.device, *sizes]
    return [*line, "--out", str(options.out / f"{name}.json"), *(["--cuda-graphs"] if captured else [])]


def _profile(options: argparse.Namespace) -> list[str]:
    quick = ["--quick"] if options.quick else []
    given = ["--device", options.device, "--out", str(options.out), *quick]
    return ["-m", "benchmarks.gpu", "--profile", "tiny" if options.quick else TARGETS[0], *given]


def _break_even(options: argparse.Namespace) -> list[str]:
    """Return the map's command, with a robot in front of a server whose pass takes as long as was measured here."""
    files = [options.out / f"{TARGETS[0]}_{kind}.json" for kind in ("graphs", "plain")]
    (found,) = json.loads(next(file for file in files if file.exists()).read_text())["models"].values()
    given = ["--verify-ms", f"{found['verify_with_logits_ms']:g}", "--out", str(options.out)]
    return ["-m", "benchmarks.break_even", *given, *(["--quick", "--steps", "1"] if options.quick else [])]


STAGES = (
    Stage("tests", 60.0, _tests),
    *(Stage(f"exactness_{dtype}", 90.0, partial(_exactness, dtype)) for dtype in ("float32", "bfloat16")),
    *(Stage(f"{preset}_{'graphs' if captured else 'plain'}", 45.0, partial(_timings, preset, captured))
      for preset in (TARGETS[0], DRAFT, TARGETS[1]) for captured in (True, False)),
    Stage("profile", 120.0, _profile),
    Stage("break_even", 60.0, _break_even),
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.gpu", __doc__)
    names = [stage.name for stage in STAGES]
    line.add_argument("--stages", nargs="+", default=names, choices=names, metavar="STAGE",
                      help=f"of {', '.join(names)} (default: all)")  # fmt: skip
    line.add_argument("--device", default="cuda", help="(default: cuda)")
    line.add_argument("--quick", action="store_true", help="tiny shapes and one frame, to try the program")
    shown = "after these nothing more begins, and what runs is ended (default: 12)"
    line.add_argument("--minutes", type=float, default=12.0, help=shown)
    line.add_argument("--out", type=Path, default=PROJECT / "out" / "gpu", help="(default: out/gpu)")
    shown = "fit what passes of a shape cost, as the verifier predicts them, and nothing else"
    line.add_argument("--profile", choices=list(SHAPES), help=shown)
    return line


def run(options: argparse.Namespace) -> int:
    """Run the stages. Returns 1 where one failed. Raises ValueError where there is no such device."""
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {options.device}: torch {torch.__version__} sees no GPU here; on a machine with "
                         "one run this again, or try the program with --device cpu --quick")  # fmt: skip
    if options.minutes <= 0.0:
        raise ValueError(f"--minutes {options.minutes:g}: give more than 0")
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.profile is not None:
        _fit(options)
        return 0
    end, allowed = time.monotonic() + 60.0 * options.minutes, 0.0
    about = {"settings": settings_of(options), "commit": commit(), "machine": machine(options.device),
             "driver": _driver(), "pair": shipped_pair()}  # fmt: skip
    stages: dict[str, dict[str, Any]] = {}
    for stage in (each for each in STAGES if each.name in options.stages):
        began = time.monotonic()
        allowed = min(allowed + stage.seconds, end - began)
        stages[stage.name] = {"end": _ended(stage, options, allowed), "seconds": round(time.monotonic() - began, 1)}
        allowed = max(0.0, allowed - (time.monotonic() - began))
        print(f"== {stage.name}: {stages[stage.name]['end']}, {stages[stage.name]['seconds']:.0f} s", flush=True)
        write_json(options.out / "summary.json", {**about, "stages": stages})
    print(f"{options.out}: summary.json, and what each stage printed and measured")
    return int(any(each["end"] != "done" for each in stages.values()))


def _ended(stage: Stage, options: argparse.Namespace, seconds: float) -> str:
    """Run a stage in a process of its own, for so long at most. Returns how it ended."""
    print(f"== {stage.name}", flush=True)
    if seconds <= 0.0:
        return "no time left"
    try:
        words = stage.words(options)
    except (OSError, ValueError, LookupError, StopIteration) as error:
        return f"left out: what it needs of an earlier stage is not there ({type(error).__name__})"
    with (options.out / f"{stage.name}.txt").open("w") as sink:
        sink.write(f"python {' '.join(words)}\n")
        sink.flush()
        # A group of its own: what the stage has started, such as a verifier, is ended with it.
        process = subprocess.Popen([sys.executable, "-u", *words], cwd=PROJECT, stdout=sink, stderr=subprocess.STDOUT,
                                   start_new_session=True)  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            _end(process)
    text = (options.out / f"{stage.name}.txt").read_text(errors="replace")
    print("\n".join(text.splitlines()[-40:]), flush=True)
    return "done" if code == 0 else f"failed, exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _driver() -> str:
    """Return the GPU's driver; empty where there is none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    query: Sequence[str] = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def _fit(options: argparse.Namespace) -> None:
    """Measure and write what passes of a shape with random weights cost."""
    vlm = build(options.profile, options.device, "bfloat16")
    config = ProfileConfig(target=options.profile, quick=options.quick, runs=1, warm_up=2)
    train, unseen = (configurations(each, vlm.context, options.quick) for each in (training(), held_out()))
    profile = profile_of(vlm, train, unseen, config)
    profile.save(options.out / COST_FILE)
    print(report(profile))


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
