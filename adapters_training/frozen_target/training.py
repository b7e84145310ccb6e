"""A training on a frozen target from its settings to its folder: dry run, training, results, command."""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from adapters_training.command import Command
from adapters_training.files import filling, replacing
from adapters_training.frozen_target.config import FrozenTargetConfig
from adapters_training.frozen_target.preparation import prepare
from adapters_training.frozen_target.trainer import F, FrozenTrainer, Prepared
from adapters_training.trainer import CHECKPOINT_FILE
from speculation.vlm.memory import gigabytes

RESULTS_FILE = "results.json"
DRY_STEPS, DRY_SAMPLES = 2, 4


def train(
    kind: type[FrozenTrainer[F]], config: F, prepared: Prepared[F] | None = None, *, is_trial: bool = False
) -> dict[str, Any]:
    """Train or go on, measure on held-out data, write the folder; return what results.json holds.

    `prepared` is of the same settings; a trial of a few steps need not come to anything. Returns nothing in every
    process but the first. Raises ValueError, in one sentence, for what cannot be trained, OSError for a full disk, and
    TrainingFailed where the loss has risen: nothing is written then.
    """
    trainer = kind(prepared or prepare(kind, config))
    trainer.is_trial = is_trial
    trainer.run()
    if not trainer.replicas.is_first:
        return {}
    with filling(trainer.out) as folder:
        found = trainer.finish(trainer.used(), folder)
    return _write_results(trainer, found)


def _write_results(trainer: FrozenTrainer[F], found: dict[str, Any]) -> dict[str, Any]:
    """Write results.json, which ends with what was `found`, and drop the checkpoint; return what the file holds."""
    prepared, counts = trainer.prepared, trainer.counts
    results = {
        "asked": _plain(prepared.config),
        "config": _plain(trainer.used()),
        "steps": trainer.steps,
        "records": prepared.plan.records,
        "records seen": trainer.steps * prepared.plan.records_a_step,
        "seconds": round(counts.seconds, 1),
        "tokens seen": counts.tokens,
        "tokens learned": counts.learned_tokens,
        "tokens per second": round(counts.tokens / max(counts.seconds, 1e-9)),
        "conversations cut at the context": counts.truncated,
        "records passed over": counts.passed_over,
        **found,
    }
    with replacing(trainer.out / RESULTS_FILE) as part:
        part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    trainer.checkpoint.unlink(missing_ok=True)
    return results


def finished_results(config: FrozenTargetConfig) -> dict[str, Any] | None:
    """Return the results in `out` if a run of just these settings ended there, else None."""
    try:
        results: dict[str, Any] = json.loads((Path(config.out) / RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return results if results.get("asked") == _plain(config) else None


def _plain(config: FrozenTargetConfig) -> dict[str, Any]:
    """Return settings as JSON gives them back."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(config))
    return plain


def dry_run(kind: type[FrozenTrainer[F]], config: F) -> str:
    """Do two steps, measure a few records, save, load what was saved; return what a full run would do and how long.

    Nothing is left on disk; of several processes the first one gets the line. Raises ValueError as `train` does.
    """
    prepared = prepare(kind, config)
    with tempfile.TemporaryDirectory(prefix="dry-run-") as folder:
        small = msgspec.structs.replace(config, steps=DRY_STEPS, held_out_samples=DRY_SAMPLES, out=folder, workers=0)
        own = replace(prepared, config=small)
        trial = kind(own)
        seconds = trial.seconds_a_step()
        results = train(kind, small, own, is_trial=True)
        if not results:
            return ""
        trial.load(Path(folder))
    plan = prepared.plan
    steps = config.steps or plan.steps(config.epochs)
    epochs = steps * plan.records_a_step / plan.records
    return (
        f"dry run: {DRY_STEPS} steps, {results['tokens']:,} tokens judged, {kind.made} saved and loaded. A full run: "
        f"{plan.records:,} records, {steps:,} steps of {plan.records_a_step} = {epochs:.2f} epochs, "
        f"{trial.described(results)}, {gigabytes(prepared.need)} before the first; at {seconds:.2f} s a step about "
        f"{_duration(steps * seconds)}"
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def training_command(name: str, text: str, about: str | None, kind: type[FrozenTrainer[Any]]) -> Command[Any]:
    """Return the command of a training."""

    def run(config: Any, options: argparse.Namespace) -> int:
        """Do a dry run, or train unless that was done, and print what came of it.

        Raises ValueError where --out holds what other settings made.
        """
        if options.dry_run:
            line = dry_run(kind, config)
            print(line, end="\n" if line else "")
            return 0
        results, out = finished_results(config), Path(config.out)
        if results is not None:
            print(f"{out} holds {kind.made} of these settings already; delete the folder to train anew")
        elif (out / kind.file).exists() and not (out / CHECKPOINT_FILE).exists():
            raise ValueError(f"--out {out} holds {kind.made} of other settings; choose another folder, or delete it")
        results = results or train(kind, config)
        if results:
            print("\n".join(kind.table(results)))
        return 0

    flags = {"dry-run": "two steps, a measurement, and how long all of it takes"}
    return Command(name, text, about, kind.kind, run, flags)
