"""Command line of the evaluation: python -m spec_vlm_nav.evaluation COMMAND."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from spec_vlm_nav.evaluation import closed_loop, play
from spec_vlm_nav.navigator import AnswerLate, VerifierLost

COMMANDS = (closed_loop, play)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m spec_vlm_nav.evaluation", description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_command(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: the command's, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, OSError, RuntimeError, VerifierLost, AnswerLate) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{options.command}: interrupted; what was finished is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
