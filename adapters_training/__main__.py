"""Train what the project decodes with: the embedded pair, exits and fed heads for any target, the predictor."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from safetensors import SafetensorError

from adapters_training import answers, data, evaluate, exits, pair, shapes, store_int8, text_draft
from adapters_training.exit_choice import measure, select
from adapters_training.fed_head import training as fed_head
from adapters_training.predictor import command as predictor
from adapters_training.settings import Command
from adapters_training.trainer import TrainingFailed
from adapters_training.verifier_profile import command as profile
from speculation.program_exit import INTERRUPTED
from speculation.settings import CommandLine
from speculation.worker_processes import terminable

COMMANDS: tuple[Command[Any], ...] = (
    data.COMMAND,
    shapes.COMMAND,
    pair.COMMAND,
    answers.COMMAND,
    exits.COMMAND,
    measure.COMMAND,
    select.COMMAND,
    fed_head.COMMAND,
    text_draft.COMMAND,
    predictor.COMMAND,
    profile.COMMAND,
    evaluate.COMMAND,
    store_int8.COMMAND,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one training command; returns the exit status: 1 for a training of no use, 2 for what cannot be done.

    It is 130 where the training was interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        with terminable():
            status: int = options.run(options)
    except KeyboardInterrupt:
        print(f"adapters_training {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except TrainingFailed as error:
        print(f"adapters_training {options.command}: {error}", file=sys.stderr)
        return 1
    except torch.OutOfMemoryError:
        print(f"adapters_training {options.command}: the GPU ran out of memory: give smaller batches", file=sys.stderr)
        return 2
    except (OSError, ValueError, SafetensorError) as error:
        print(f"adapters_training {options.command}: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandLine(prog="python -m adapters_training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for each in COMMANDS:
        each.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
