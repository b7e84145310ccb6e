"""Command line: python -m vlm_nav_evaluation COMMAND; every command is a module with `add_options` and `run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from edge_drafter.question import AnswerLate, VerifierLost
from speculation.settings import CommandLine
from speculation.worker_processes import terminable
from vlm_nav_evaluation import demo, play, soak
from vlm_nav_evaluation.bags import record
from vlm_nav_evaluation.closed_loop import acting, bars
from vlm_nav_evaluation.closed_loop import command as closed_loop
from vlm_nav_evaluation.fleet import command as fleet
from vlm_nav_evaluation.link_loss import command as link_loss
from vlm_nav_evaluation.replay import command as replay
from vlm_nav_evaluation.report import command as report

COMMANDS: Mapping[str, tuple[ModuleType, str]] = {
    "demo": (demo, "a simulated Go2 finds an object"),
    "play": (play, "a bag into the live navigation node"),
    "report": (report, "the page of a recorded run"),
    "closed-loop": (closed_loop, "find objects in simulated rooms"),
    "bars": (bars, "what a target has to reach, in one table"),
    "record": (record, "make a labelled bag with the simulator's oracle"),
    "replay": (replay, "decode the frames of bags in several modes"),
    "acting": (acting, "does faster decoding make a better robot?"),
    "link-loss": (link_loss, "what the robot does when a part fails"),
    "soak": (soak, "a thousand steps without growth"),
    "fleet": (fleet, "many robots and one verifier on virtual time"),
}
"""Module and help by name."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    about = "Demo, reports, and offline evaluation."
    line: argparse.ArgumentParser = CommandLine(prog="python -m vlm_nav_evaluation", description=about)
    commands = line.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, shown) in COMMANDS.items():
        own = commands.add_parser(name, help=shown, description=module.__doc__)
        module.add_options(own)
        own.set_defaults(run=module.run)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit status; 2 after one sentence on stderr, 130 where it was interrupted."""
    options = parser().parse_args(arguments)
    try:
        with terminable():
            status: int = options.run(options)
    except (ValueError, RuntimeError, OSError, VerifierLost, AnswerLate) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        goes_on = "; run the same command again to resume" if hasattr(options, "restart") else ""
        print(f"{options.command}: interrupted{goes_on}", file=sys.stderr)
        return 130
    return status


def replay_command() -> int:
    """Run `replay` with the words after the console script spec-vlm-nav-replay; as `main`."""
    return main(["replay", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
