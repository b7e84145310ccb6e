"""A published text pair end to end: SmolLM2-135M's weights, drafts, exits and a fed head made here, and their figures.

    python -m benchmarks.real_text all --out out/smollm2 --plan      # what would be done, and how long it takes
    python -m benchmarks.real_text all --out out/smollm2 --save      # two hours; the same command goes on

Weights and conversations come out of installed Python packages (docs/benchmarks.md has the command). Every stage
makes a file or folder; one that is there is not made again: delete it to make it anew.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real_text import report
from benchmarks.real_text.setup import FULL, QUICK, Setup, cores
from benchmarks.real_text.stages import STAGES, Stage
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.options import add_save
from vlm_nav_evaluation.tables import table

ALL, REPORT = "all", "report"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.real_text", __doc__)
    names = [stage.name for stage in STAGES]
    line.add_argument("stage", choices=[ALL, *names, REPORT], help="all of them, one, or the table of what is there")
    line.add_argument("--out", type=Path, default=Path("out/smollm2"), help="everything (default: %(default)s)")
    line.add_argument("--plan", action="store_true", help="print the stages, their commands and minutes; do nothing")
    line.add_argument("--threads", type=int, default=cores(), help="of trainings and measurements (default: all cores)")
    line.add_argument("--prompts", type=int, default=0, metavar="N", help="time the first N only (default: all, 100)")
    either = line.add_mutually_exclusive_group()
    either.add_argument("--quick", action="store_true", help="every stage tiny, a few minutes: does it work here?")
    add_save(either)
    return line


def run(options: argparse.Namespace) -> None:
    """Do what is missing, then print the table. Raises ValueError for what cannot be done."""
    if options.threads < 1:
        raise ValueError(f"--threads {options.threads}: give at least 1")
    sizes = QUICK if options.quick else FULL
    if not 0 <= options.prompts <= sizes.prompts:
        raise ValueError(f"--prompts {options.prompts}: give 1 to {sizes.prompts}, or 0 for all")
    setup = Setup(options.out, sizes, options.threads, options.prompts)
    stages = [stage for stage in STAGES if options.stage in (ALL, stage.name)]
    if options.plan:
        plan(setup, stages)
        return
    setup.check()
    for number, stage in enumerate(stages, start=1):
        if stage.made(setup).exists():
            print(f"[{number}/{len(stages)}] {stage.name}: {stage.made(setup)} is there", flush=True)
            continue
        print(f"[{number}/{len(stages)}] {stage.name}: {stage.what}\n{stage.shown(setup)}", flush=True)
        began, worked = time.monotonic(), time.process_time()
        stage.do(setup)
        worked = time.process_time() - worked
        print(f"{stage.name}: {time.monotonic() - began:.0f} s, {worked:.0f} s of processor time", flush=True)
    if options.stage in (ALL, REPORT):
        report.show(setup, options.save)


def plan(setup: Setup, stages: Sequence[Stage]) -> None:
    """Print what would be done."""
    rows = [
        (stage.name, "done" if stage.made(setup).exists() else f"{stage.minutes:g}", stage.what) for stage in stages
    ]
    header = ("stage", "minutes", "what")
    # The last column is text, which `table` would align on the right.
    widest = max(len(what) for *_, what in rows)
    print(table(header, [(name, minutes, what.ljust(widest)) for name, minutes, what in rows]))
    left = sum(stage.minutes for stage in stages if not stage.made(setup).exists())
    print(f"{left:g} minutes are left, expected of two cores without --quick\n")
    for stage in stages:
        print(stage.shown(setup))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
