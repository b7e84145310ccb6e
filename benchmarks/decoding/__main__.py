"""Command line of the comparisons: ablation, sweeps, or both of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from types import ModuleType

from benchmarks.decoding import ablation, sweeps
from benchmarks.recordings import add_cost, add_recording
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.plots import add_outputs

COMMANDS: dict[str, tuple[ModuleType, bool, str]] = {
    "ablation": (ablation, True, "full with each technique off, sd with each on"),
    "sweeps": (sweeps, False, "threads, draft length and exits, as Early Exits, Fig. 4"),
}
"""Module, whether it decodes a recording of the pair, and what it shows. A module has STEPS, run, maybe add_options."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = command_line("benchmarks.decoding", "Techniques, threads, draft lengths and exits, one against the others.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, recorded, what) in COMMANDS.items():
        line = commands.add_parser(name, help=what, description=module.__doc__, formatter_class=top.formatter_class)
        add_outputs(line)
        add_cost(line)
        full, quick, decoded = module.STEPS
        line.add_argument("--steps", type=int, help=f"{decoded} (default: {full}, with --quick {quick})")
        if hasattr(module, "add_options"):
            module.add_options(line)
        if recorded:
            add_recording(line)
        line.set_defaults(action=partial(run_one, module))
    every = commands.add_parser("all", help="both, one after the other")
    add_outputs(every)
    add_cost(every)
    add_recording(every)
    every.set_defaults(action=run_all)
    return top


def run_one(module: ModuleType, options: argparse.Namespace) -> None:
    """Run a command; --steps, which is saved, has its own default for --quick."""
    full, quick, _ = module.STEPS
    options.steps = options.steps or (quick if options.quick else full)
    module.run(options)


def run_all(options: argparse.Namespace) -> None:
    """Run every command with its own defaults and the options of `all` that it has."""
    for name, (_, _, what) in COMMANDS.items():
        own = parser().parse_args([name])
        given = {key: value for key, value in vars(options).items() if key not in ("command", "action")}
        vars(own).update({key: value for key, value in given.items() if hasattr(own, key)})
        started = time.perf_counter()
        print(f"\n=== {name}: {what}", flush=True)
        own.action(own)
        print(f"=== {name}: {time.perf_counter() - started:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, lambda options: options.action(options), arguments)


if __name__ == "__main__":
    sys.exit(main())
