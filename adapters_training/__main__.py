"""Train what the project decodes with: the embedded pair, and early exits for any target.

python -m adapters_training data | processor | pair | answers | exits | evaluate
"""

from __future__ import annotations

import argparse
import json
import sys

from adapters_training import answers, data, evaluate, pair, shapes

COMMANDS = (data, shapes, pair, answers, evaluate)


def main(arguments: list[str] | None = None) -> int:
    """Run one training command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (OSError, ValueError) as error:
        print(f"adapters_training {options.command}: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m adapters_training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add_command(commands)

    exits = commands.add_parser("exits", help="train early-exit adapters on a frozen target")
    exits.add_argument("--target", required=True, help="model folder")
    exits.add_argument("--data", required=True)
    exits.add_argument("--held-out", required=True, help="held-out frames for the reliability table")
    exits.add_argument("--out", required=True)
    exits.add_argument("--layers", default="1,3,5", help="layers to exit after, from 0")
    exits.add_argument("--rank", type=int, default=64)
    exits.add_argument("--minutes", type=float, default=5.0)
    exits.set_defaults(run=_exits)
    return parser


def _exits(options: argparse.Namespace) -> int:
    from adapters_training.exits import ExitsConfig, train

    layers = tuple(int(text) for text in options.layers.split(","))
    config = ExitsConfig(options.target, options.data, options.held_out, options.out, layers, options.rank,
                         options.minutes)  # fmt: skip
    print(json.dumps(train(config), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
