"""What every training on a frozen target leaves in its folder, and what its dry run reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adapters_training import settings
from adapters_training.exits.config import FrozenTargetConfig
from adapters_training.exits.preparation import Prepared
from adapters_training.exits.trainer import Trainer
from adapters_training.files import replacing, resumable
from speculation.vlm.memory import gigabytes

RESULTS_FILE = "results.json"
CONFIG_FILE = "config.yaml"
DRY_STEPS, DRY_SAMPLES = 2, 4

C = TypeVar("C", bound=FrozenTargetConfig)


def train_to_end(trainer: Trainer[C], *, trial: bool = False) -> C | None:
    """Write the settings as they are used, go on to the last step, wait for all processes; return these settings.

    None in every process but the first. Raises TrainingFailed where the loss is no number or, unless this is a `trial`
    of a few steps, has risen, and OSError for a full disk.
    """
    prepared = trainer.prepared
    config = prepared.config
    effective = msgspec.structs.replace(config, steps=trainer.steps, minutes=0.0, layers=prepared.layers)
    if prepared.accelerator.is_main_process:
        with resumable(trainer.checkpoint):
            settings.write(effective, Path(config.out) / CONFIG_FILE)
    trainer.train()
    if not trial:
        trainer.check()
    prepared.accelerator.wait_for_everyone()
    return effective if prepared.accelerator.is_main_process else None


def write_results(trainer: Trainer[C], effective: C, found: dict[str, Any]) -> dict[str, Any]:
    """Write results.json, which ends with what was `found`, and drop the checkpoint; return what the file holds."""
    prepared, counts = trainer.prepared, trainer.counts
    results = {
        "asked": plain(prepared.config),
        "config": plain(effective),
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
    return results if results.get("asked") == plain(config) else None


def plain(config: FrozenTargetConfig) -> dict[str, Any]:
    """Return settings as JSON gives them back."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(config))
    return plain


def dry_settings(config: C, folder: str, **changes: Any) -> C:
    """Return the settings of a dry run in `folder`."""
    return msgspec.structs.replace(
        config, steps=DRY_STEPS, minutes=0.0, held_out_samples=DRY_SAMPLES, out=folder, workers=0, **changes
    )


def dry_report(prepared: Prepared[C], seconds: float, tokens: int, saved: str, made: str, with_target: str = "") -> str:
    """Return what a full run would do and how long, at `seconds` a step (`with_target`: what is among them).

    `tokens` were judged in the dry run; `saved` names what it saved and loaded, `made` what a full run makes.
    """
    config, plan = prepared.config, prepared.plan
    steps = config.steps or (
        max(1, round(60 * config.minutes / seconds)) if config.minutes else plan.steps(config.epochs)
    )
    epochs = steps * plan.records_a_step / plan.records
    return (
        f"dry run: {DRY_STEPS} steps, {tokens:,} tokens judged, {saved} saved and loaded. A full run: "
        f"{plan.records:,} records, {steps:,} steps of {plan.records_a_step} = {epochs:.2f} epochs, {made}, about "
        f"{gigabytes(prepared.need.total)}; at {seconds:.2f} s a step{with_target} about {duration(steps * seconds)}"
    )


def duration(seconds: float) -> str:
    """Return a time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
