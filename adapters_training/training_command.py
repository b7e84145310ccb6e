"""The command of a training on a frozen target, whatever learns: its options, what it prints, what it refuses."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from adapters_training import settings
from adapters_training.exits.config import FrozenTargetConfig

C = TypeVar("C", bound=FrozenTargetConfig)


def add_training(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    kind: type[C],
    run: Callable[[C, argparse.Namespace], int],
    *,
    text: str,
    about: str | None,
    smaller: str,
    replace: str,
) -> argparse.ArgumentParser:
    """Register a training with settings of `kind`; return its command line for options of its own.

    `text` is its line in the help of all commands and `about` its own help. `smaller` names the options to try where a
    GPU has too little memory, `replace` is the help of --overwrite.
    """
    line = commands.add_parser(
        name, help=text, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    settings.add_options(line, kind)
    line.add_argument("--dry-run", action="store_true", help="two steps, a measurement, and how long all of it takes")
    line.add_argument("--overwrite", action="store_true", help=replace)
    line.set_defaults(run=lambda options: _run(settings.read(kind, options), options, run, smaller))
    return line


def _run(config: C, options: argparse.Namespace, run: Callable[[C, argparse.Namespace], int], smaller: str) -> int:
    """Raises ValueError, in one sentence, for what cannot be trained."""
    import torch

    try:
        return run(config, options)
    except torch.OutOfMemoryError:
        raise ValueError(f"the GPU ran out of memory: give less {smaller}") from None
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def run_training(
    config: C,
    options: argparse.Namespace,
    *,
    dry_run: Callable[[C], str],
    train: Callable[[C], dict[str, Any]],
    table: Callable[[dict[str, Any]], Sequence[str]],
    made: str,
    written: str,
) -> int:
    """Do a dry run, or train unless that was done, and print what came of it.

    `made` is what a run leaves in its folder, among it a file named `written`. Raises ValueError where that folder
    holds one of other settings and --overwrite was not given.
    """
    from adapters_training.exits.outcome import finished_results

    if options.dry_run:
        line = dry_run(config)
        if line:
            print(line)
        return 0
    results = finished_results(config)
    if results is not None:
        print(f"{config.out} holds {made} of these settings already; delete the folder to train anew")
    else:
        _refuse_others(Path(config.out), options.overwrite, made, written)
        results = train(config)
    if results:
        print("\n".join(table(results)))
    return 0


def _refuse_others(out: Path, overwrite: bool, made: str, written: str) -> None:
    from adapters_training.exits.trainer import CHECKPOINT_FILE

    if (out / written).exists() and not (out / CHECKPOINT_FILE).exists() and not overwrite:
        raise ValueError(f"--out {out} holds {made} of other settings; choose another folder, or add --overwrite")
