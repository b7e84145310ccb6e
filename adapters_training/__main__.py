"""Train what the project decodes with: the embedded pair, exits and fed heads for any target, the predictor."""

from __future__ import annotations

import argparse
import sys

from adapters_training import answers, data, evaluate, exits, pair, shapes, store, text_draft, walk_answers
from adapters_training.course import TrainingFailed
from adapters_training.exit_choice import measure, select
from adapters_training.fed_head import training as fed_head
from adapters_training.predictor import command as predictor
from adapters_training.recipe import command as recipe
from adapters_training.verifier_profile import command as profile
from speculation.early_end import INTERRUPTED
from speculation.processes import terminable

COMMANDS = (
    recipe.add_command,
    data.COMMAND.add,
    shapes.COMMAND.add,
    pair.COMMAND.add,
    answers.COMMAND.add,
    walk_answers.COMMAND.add,
    exits.COMMAND.add,
    measure.COMMAND.add,
    select.COMMAND.add,
    fed_head.COMMAND.add,
    text_draft.COMMAND.add,
    predictor.COMMAND.add,
    profile.COMMAND.add,
    evaluate.COMMAND.add,
    store.COMMAND.add,
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
    except (OSError, ValueError) as error:
        print(f"adapters_training {options.command}: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m adapters_training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for add in COMMANDS:
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
