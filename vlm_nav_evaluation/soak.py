"""`soak`: a thousand steps, and whether any process grows: memory, threads, open files.

Verifier, simulated Go2, bridge, executor and navigation run as separate processes. The goals are dry runs, one after
the other, so that a step takes an answer's time and no walk.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from spec_vlm_nav.graph import PROJECT, SIM_GRAPH
from spec_vlm_nav.runner import Runner
from speculation.progress import progress
from speculation.settings import path_flag
from vlm_nav_evaluation.graph_options import DECODING, Log, add_graph_flags, prepare
from vlm_nav_evaluation.results import provenance, write_json
from vlm_nav_evaluation.tables import Column, figures_table

READY_LIMIT_S, STEP_LIMIT_S = 120.0, 60.0
WARM_UP = 0.2
"""Share of the samples at the beginning that are left out: caches fill, estimates settle."""
POLL_S = 0.05
SAMPLES = 50
ALLOWED_MB, ALLOWED_SHARE = 4.0, 0.03
"""Less growth of memory than the larger of these, over a whole run, is an allocator's noise."""
ALLOWED = {"threads": 1.0, "files": 3.0}
"""Threads and files that come and go are no growth."""
COLUMNS = (
    Column("memory MB", "memory_mb", ".0f"),
    Column("grown MB", "grown.memory_mb", ".2f"),
    Column("threads", "threads", ".0f"),
    Column("grown", "grown.threads", ".0f"),
    Column("files", "files", ".0f"),
    Column("grown", "grown.files", ".0f"),
)


class Sample(NamedTuple):
    """What one process holds: resident memory without what is mapped from files, threads, open files."""

    memory_mb: float
    threads: float
    files: float


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `soak`."""
    add_graph_flags(line, SIM_GRAPH, "seed", *DECODING, seed="3")
    line.add_argument("--steps", type=int, default=1000, help="answers (default: 1000)")
    line.add_argument("--instruction", default="find the silver bottle")
    line.add_argument("--out", type=path_flag, default=PROJECT / "out" / "soak", help="log and soak.json go here")


def run(options: argparse.Namespace) -> int:
    """Run the steps, print the table; return 1 where a process grows. Raises ValueError for too few steps."""
    if options.steps < SAMPLES:
        raise ValueError(f"--steps {options.steps}: give at least {SAMPLES}")
    arguments = prepare(SIM_GRAPH, options)
    from vlm_nav_evaluation.nodes.observer import Observer

    log = Log(options.out / "log.txt")
    answers = 0

    def count(topic: str, _: Any) -> None:
        nonlocal answers
        answers += topic == "decoding_stats"

    samples: dict[str, list[Sample]] = {}
    with Runner(SIM_GRAPH, arguments, log) as runner, Observer(count) as observer:
        runner.start()
        runner.wait_until(observer.ready, "all nodes ready", READY_LIMIT_S)
        began, every = time.monotonic(), options.steps // SAMPLES
        with progress(total=options.steps, unit="step") as bar:
            ends = observer.send(options.instruction, 3600.0, dry_run=True)
            while answers < options.steps:
                before = answers
                until = time.monotonic() + STEP_LIMIT_S
                while answers < before + every:
                    runner.check()
                    time.sleep(POLL_S)
                    if ends:
                        ends = observer.send(options.instruction, 3600.0, dry_run=True)
                    if time.monotonic() > until + every:
                        raise RuntimeError(f"no answer within {STEP_LIMIT_S:g} s; the log is {log.path}")
                bar.update(answers - before)
                for name in runner.names:
                    samples.setdefault(name, []).append(sample(runner.pid(name)))
        seconds = time.monotonic() - began
    return report(options, {name: growth(name, each) for name, each in samples.items()}, answers, seconds)


def report(options: argparse.Namespace, found: Mapping[str, Mapping[str, Any]], answers: int, seconds: float) -> int:
    """Print and write the table; return the exit status."""
    about, growing = provenance(options), [name for name, each in found.items() if each["grows"]]
    print(figures_table("process", found, COLUMNS))
    print(f"\n{answers} steps in {seconds:.0f} s; {about['machine']}")
    print(f"grows: {', '.join(growing)}" if growing else "no process grows")
    path = options.out / "soak.json"
    write_json(path, {**about, "steps": answers, "seconds": round(seconds, 1), "processes": found, "growing": growing})
    print(path)
    return 1 if growing else 0


def sample(pid: int) -> Sample:
    """Return what a process holds now. Raises OSError for one that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(int(status["RssAnon"].split()[0]) / 1024, int(status["Threads"]), files)


def growth(process: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the medians of the first third of the samples, after the warm-up, and how much more the last third has.

    grows: whether that is more than noise. Raises ValueError for fewer than three samples.
    """
    kept = samples[int(len(samples) * WARM_UP) :]
    third = len(kept) // 3
    if third < 1:
        raise ValueError(f"{process}: {len(samples)} samples are too few")
    first, last = (Sample(*map(median, zip(*part, strict=True))) for part in (kept[:third], kept[-third:]))
    grown = {name: getattr(last, name) - value for name, value in first._asdict().items()}
    allowed = {**ALLOWED, "memory_mb": max(ALLOWED_MB, ALLOWED_SHARE * first.memory_mb)}
    return {**first._asdict(), "grown": grown, "grows": any(grown[name] > most for name, most in allowed.items())}
