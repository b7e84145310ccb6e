"""`soak`: a thousand steps, and whether any process grows: memory, threads, open files.

Verifier, simulated Go2, bridge, executor and navigation run as separate processes. The goals are dry runs, one after
the other, so that a step takes an answer's time and no walk.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spec_vlm_nav.graph import PROJECT, SIM_GRAPH
from spec_vlm_nav.runner import Log, Runner
from speculation.progress import progress
from speculation.settings import path_flag
from vlm_nav_evaluation.live import DECODING, add_graph_flags, prepare
from vlm_nav_evaluation.setting import machine
from vlm_nav_evaluation.tables import Column, figures_table

READY_LIMIT_S, STEP_LIMIT_S = 120.0, 60.0
WARM_UP = 0.2
"""Share of the samples at the beginning that are left out: caches fill, estimates settle."""
MEMORY_BYTES, MEMORY_SHARE = 4 << 20, 0.03
"""Less growth than the larger of these, over a whole run, is an allocator's noise."""
THREADS, FILES = 1, 3
"""So many come and go."""
SAMPLES = 50


@dataclass(frozen=True)
class Sample:
    """What one process holds."""

    memory: int
    """Resident bytes, without what is mapped from files."""
    threads: int
    files: int


@dataclass(frozen=True)
class Growth:
    """A process in the first and in the last third of its samples, medians."""

    process: str
    memory_mb: float
    memory_grown_mb: float
    threads: int
    threads_grown: int
    files: int
    files_grown: int

    @property
    def grows(self) -> bool:
        """Whether it would not last."""
        allowed = max(MEMORY_BYTES / 2**20, MEMORY_SHARE * self.memory_mb)
        return self.memory_grown_mb > allowed or self.threads_grown > THREADS or self.files_grown > FILES


COLUMNS = (
    Column("memory MB", "memory_mb", ".0f"),
    Column("grown MB", "memory_grown_mb", ".2f"),
    Column("threads", "threads"),
    Column("grown", "threads_grown"),
    Column("files", "files"),
    Column("grown", "files_grown"),
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `soak`."""
    line = commands.add_parser("soak", help="a thousand steps without growth", description=__doc__)
    add_graph_flags(line, SIM_GRAPH, "seed", *DECODING, seed="3")
    line.add_argument("--steps", type=int, default=1000, help="answers (default: 1000)")
    line.add_argument("--instruction", default="find the silver bottle")
    line.add_argument("--out", type=path_flag, default=PROJECT / "out" / "soak", help="log and soak.json go here")
    line.set_defaults(run=run)


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
            goal = observer.send(options.instruction, 3600.0, dry_run=True)
            while answers < options.steps:
                before = answers
                until = time.monotonic() + STEP_LIMIT_S
                while answers < before + every:
                    runner.check()
                    if goal.wait(0.05) is not None:
                        goal = observer.send(options.instruction, 3600.0, dry_run=True)
                    if time.monotonic() > until + every:
                        raise RuntimeError(f"no answer within {STEP_LIMIT_S:g} s; the log is {log.path}")
                bar.update(answers - before)
                for name in runner.names:
                    samples.setdefault(name, []).append(sample(runner.pid(name)))
        seconds = time.monotonic() - began
    return report(options, [growth(name, each) for name, each in samples.items()], answers, seconds)


def report(options: argparse.Namespace, found: Sequence[Growth], answers: int, seconds: float) -> int:
    """Print and write the table; return the exit status."""
    print(figures_table("process", {each.process: asdict(each) for each in found}, COLUMNS))
    growing = [each.process for each in found if each.grows]
    print(f"\n{answers} steps in {seconds:.0f} s; {machine()}")
    print(f"grows: {', '.join(growing)}" if growing else "no process grows")
    data: Mapping[str, Any] = {
        "machine": machine(),
        "steps": answers,
        "seconds": round(seconds, 1),
        "processes": [asdict(each) for each in found],
        "growing": growing,
    }
    path = options.out / "soak.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(path)
    return 1 if growing else 0


def sample(pid: int) -> Sample:
    """Return what a process holds now. Raises OSError for one that has ended."""
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        if ":" in line
    )
    return Sample(
        int(status["RssAnon"].split()[0]) * 1024,
        int(status["Threads"]),
        len(os.listdir(f"/proc/{pid}/fd")),
    )


def growth(process: str, samples: Sequence[Sample]) -> Growth:
    """Compare the first third with the last, after the warm-up. Raises ValueError for fewer than three samples."""
    kept = samples[int(len(samples) * WARM_UP) :]
    third = len(kept) // 3
    if third < 1:
        raise ValueError(f"{process}: {len(samples)} samples are too few")
    first, last = kept[:third], kept[-third:]

    def middle(part: Sequence[Sample], name: str) -> float:
        return float(median(getattr(each, name) for each in part))

    memory = middle(first, "memory") / 2**20, middle(last, "memory") / 2**20
    threads = int(middle(first, "threads")), int(middle(last, "threads"))
    files = int(middle(first, "files")), int(middle(last, "files"))
    return Growth(
        process, memory[0], memory[1] - memory[0], threads[0], threads[1] - threads[0], files[0], files[1] - files[0]
    )
