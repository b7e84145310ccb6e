"""One training from its settings to its folder: train, measure, save; and two of them compared."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from adapters_training.exits.config import Loss, TrainingConfig
from adapters_training.exits.measuring import measure
from adapters_training.exits.outcome import dry_report, dry_settings, finished_results, train_to_end, write_results
from adapters_training.exits.preparation import Prepared, prepare
from adapters_training.exits.training import ExitTrainer
from adapters_training.files import filling, resumable
from speculation.exits import ExitHeads


def train(
    config: TrainingConfig, prepared: Prepared[TrainingConfig] | None = None, *, trial: bool = False
) -> dict[str, Any]:
    """Train or go on, measure on held-out data, write the exits folder; return what results.json holds.

    `prepared` is of the same settings; a `trial` of a few steps need not come to anything. Raises ValueError, in one
    sentence, for what cannot be trained, OSError for a full disk, and TrainingFailed where the loss has risen: nothing
    is written then.
    """
    trainer = ExitTrainer(prepared or prepare(config))
    effective = train_to_end(trainer, trial=trial)
    if effective is None:
        return {}
    with resumable(trainer.checkpoint):
        return _finish(trainer, effective, trial)


def _finish(trainer: ExitTrainer, config: TrainingConfig, trial: bool) -> dict[str, Any]:
    prepared, heads = trainer.prepared, trainer.heads
    # Measured as they are served: in the target's dtype.
    heads.adapters.to(prepared.vlm.dtype).requires_grad_(False)
    found = measure(prepared.vlm, heads, prepared.held_out(config.held_out_samples), config.head_tokens)
    agreed, bare = (_mean(found[name]) for name in ("agreement", "agreement without adapter"))
    if agreed < bare and not trial:
        tqdm.write(
            f"warning: these exits agree with the last layer in {agreed:.1%} of {found['tokens']} held-out tokens, "
            f"without adapters it is {bare:.1%}; if the data's tokens are those of the target, "
            f"{trainer.course.remedy}",
            file=sys.stderr,
        )
    with filling(trainer.out) as part:
        heads.save(part)
    return write_results(trainer, config, found)


def _mean(rates: dict[int, float]) -> float:
    return sum(rates.values()) / len(rates)


def compare(config: TrainingConfig, losses: tuple[Loss, ...] = (Loss.CE, Loss.KL)) -> dict[str, dict[str, Any]]:
    """Train once with each loss, all else equal, into folders of `out` named after them; return their results.

    A finished one is not trained again. Raises ValueError as `train` does.
    """
    prepared = prepare(config)
    results: dict[str, dict[str, Any]] = {}
    for loss in losses:
        own = msgspec.structs.replace(config, loss=loss, out=str(Path(config.out) / loss.value))
        results[loss.value] = finished_results(own) or train(own, replace(prepared, config=own))
        # What --minutes came to with the first loss holds for the others.
        config = msgspec.structs.replace(config, steps=results[loss.value]["steps"], minutes=0.0)
    return results


def dry_run(config: TrainingConfig) -> str:
    """Do two steps, measure a few records, save, load what was saved; return what a full run would do and how long.

    Nothing is left on disk; of several processes the first one gets the line. Raises ValueError as `train` does.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="exits-") as folder:
        small = dry_settings(config, folder)
        trial = ExitTrainer(replace(prepared, config=small))
        seconds = trial.seconds_a_step()
        results = train(small, replace(prepared, config=small), trial=True)
        if not results:
            return ""
        ExitHeads.load(Path(folder), prepared.vlm)
    weights = sum(parameter.numel() for parameter in trial.heads.parameters())
    made = f"{len(prepared.layers)} exits of rank {config.rank} ({weights / 1e6:.2f} M weights)"
    return dry_report(prepared, seconds, results["tokens"], "exits", made)
