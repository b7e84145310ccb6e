"""Send anything to a verifier and to a robot, on virtual time: python -m tests.fuzz --messages 1000000 --seed 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from speculation.progress import progress
from tests.fuzz.campaign import Failed, campaign
from tests.fuzz.edge import EDGE
from tests.fuzz.verifier import VERIFIER

SIDES = {side.name: side for side in (VERIFIER, EDGE)}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="messages to each side (default: 20000)")
    parser.add_argument("--seed", type=int, default=1, help="names all that is sent (default: 1)")
    parser.add_argument("--side", choices=(*SIDES, "both"), default="both")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where nothing broke, or 1 after the seed and what was sent last."""
    options = parser().parse_args(arguments)
    for side in SIDES.values() if options.side == "both" else (SIDES[options.side],):
        with progress(total=options.messages, unit=" messages", desc=side.name) as bar:
            try:
                report = campaign(side, options.messages, options.seed, progress=bar.update)
            except Failed as failed:
                bar.close()
                print(failed, file=sys.stderr)
                return 1
        print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
