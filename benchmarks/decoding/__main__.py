"""Command line of the comparisons: modes, ablation, queues, sweeps, batched, cost, or all of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from types import ModuleType

from benchmarks.decoding import ablation, batched, cost, modes, queues, sweeps
from benchmarks.recordings import add_recording
from evaluation.experiment.command import command_line, main_of
from evaluation.plots import add_outputs

COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "modes": (modes, "every mode at every round trip, raw, declared and on virtual time"),
    "ablation": (ablation, "full with each technique off, sd with each on"),
    "queues": (queues, "queue policies on a slow link, beside Early Exits, Table 7"),
    "sweeps": (sweeps, "threads, draft length and exits, as Early Exits, Fig. 4"),
    "batched": (batched, "batched pre-drafting, Early Exits, Appendix C"),
    "cost": (cost, "dollars of requests and tokens per dollar"),
}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = command_line("benchmarks.decoding", "Modes, techniques and queues, one against the others.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, what) in COMMANDS.items():
        line = commands.add_parser(name, help=what, description=module.__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
        module.add_options(line)
        line.set_defaults(action=module.run)
    every = commands.add_parser("all", help="all of these, one after another")
    add_outputs(every)
    add_recording(every)
    every.set_defaults(action=run_all)
    return top


def run_all(options: argparse.Namespace) -> None:
    """Run every command with its own defaults and the options of `all` that it has."""
    given = {name: value for name, value in vars(options).items() if name not in ("command", "action")}
    for name, (module, what) in COMMANDS.items():
        own = vars(parser().parse_args([name]))
        started = time.perf_counter()
        print(f"\n=== {name}: {what}", flush=True)
        module.run(argparse.Namespace(**{**own, **{key: value for key, value in given.items() if key in own}}))
        print(f"=== {name}: {time.perf_counter() - started:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, lambda options: options.action(options), arguments)


if __name__ == "__main__":
    sys.exit(main())
