"""One training from its settings to its folder: train, measure, save; and two of them compared."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from adapters_training import settings
from adapters_training.exits.config import FrozenTargetConfig, Loss, TrainingConfig
from adapters_training.exits.measuring import measure
from adapters_training.exits.preparation import Prepared, prepare
from adapters_training.exits.training import ExitTrainer
from speculation.exits import ExitHeads
from speculation.vlm.memory import gigabytes

RESULTS_FILE = "results.json"
CONFIG_FILE = "config.yaml"
DRY_STEPS, DRY_SAMPLES = 2, 4


def train(config: TrainingConfig, prepared: Prepared[TrainingConfig] | None = None) -> dict[str, Any]:
    """Train or go on, measure on held-out data, write the exits folder; return what results.json holds.

    Raises ValueError, in one sentence, for what cannot be trained.
    """
    prepared = prepared or prepare(config)
    out = Path(config.out)
    trainer = ExitTrainer(prepared)
    effective = msgspec.structs.replace(config, steps=trainer.steps, minutes=0.0, layers=prepared.layers)
    if prepared.accelerator.is_main_process:
        settings.write(effective, out / CONFIG_FILE)
    trainer.train()
    prepared.accelerator.wait_for_everyone()
    if not prepared.accelerator.is_main_process:
        return {}
    return _finish(trainer, config, effective)


def _finish(trainer: ExitTrainer, asked: TrainingConfig, config: TrainingConfig) -> dict[str, Any]:
    prepared, heads, counts = trainer.prepared, trainer.heads, trainer.counts
    # Measured as they are served: in the target's dtype.
    heads.adapters.to(prepared.vlm.dtype).requires_grad_(False)
    found = measure(prepared.vlm, heads, prepared.held_out(config.held_out_samples), config.head_tokens)
    out = Path(config.out)
    heads.save(out)
    results = {
        "asked": plain(asked),
        "config": plain(config),
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
    (out / RESULTS_FILE).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    trainer.checkpoint.unlink(missing_ok=True)
    return results


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


def finished_results(config: FrozenTargetConfig) -> dict[str, Any] | None:
    """Return the results in `out` if a run of just these settings ended there, else None."""
    try:
        results: dict[str, Any] = json.loads((Path(config.out) / RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return results if results.get("asked") == plain(config) else None


def plain(config: FrozenTargetConfig) -> dict[str, Any]:
    """Return settings as JSON gives them back."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(config))
    return plain


def dry_run(config: TrainingConfig) -> str:
    """Do two steps, measure a few records, save, load what was saved; return what a full run would do and how long.

    Nothing is left on disk; of several processes the first one gets the line. Raises ValueError as `train` does.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="exits-") as folder:
        small = msgspec.structs.replace(
            config, steps=DRY_STEPS, minutes=0.0, held_out_samples=DRY_SAMPLES, out=folder, workers=0
        )
        trial = ExitTrainer(replace(prepared, config=small))
        seconds = trial.seconds_a_step()
        results = train(small, replace(prepared, config=small))
        if not results:
            return ""
        ExitHeads.load(Path(folder), prepared.vlm)
    plan = prepared.plan
    steps = config.steps or (
        max(1, round(60 * config.minutes / seconds)) if config.minutes else plan.steps(config.epochs)
    )
    epochs = steps * plan.records_a_step / plan.records
    weights = sum(parameter.numel() for parameter in trial.heads.parameters())
    return (
        f"dry run: {DRY_STEPS} steps, {results['tokens']:,} tokens judged, exits saved and loaded. A full run: "
        f"{plan.records:,} records, {steps:,} steps of {plan.records_a_step} = {epochs:.2f} epochs, "
        f"{len(prepared.layers)} exits of rank {config.rank} ({weights / 1e6:.2f} M weights), about "
        f"{gigabytes(prepared.need.total)}; at {seconds:.2f} s a step about {duration(steps * seconds)}"
    )


def duration(seconds: float) -> str:
    """Return a time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
