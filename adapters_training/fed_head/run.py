"""One training of a fed head from its settings to its folder: train, measure, save."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from adapters_training import settings
from adapters_training.exits.preparation import Prepared
from adapters_training.exits.run import CONFIG_FILE, DRY_SAMPLES, DRY_STEPS, RESULTS_FILE, duration, plain
from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.fed_head.measuring import measure
from adapters_training.fed_head.training import FedTrainer, prepare
from speculation.features import SCALE_BYTES
from speculation.fed.files import load_encoder, load_head, round_weights, save
from speculation.vlm.load import load_vlm
from speculation.vlm.memory import gigabytes

SHOWN_DEPTHS = 16
"""Depths of a draft whose shares of right tokens results.json has."""


def train(config: FedHeadConfig, prepared: Prepared[FedHeadConfig] | None = None) -> dict[str, Any]:
    """Train or go on, measure on held-out data, write the head's folder; return what results.json holds.

    Raises ValueError, in one sentence, for what cannot be trained.
    """
    prepared = prepared or prepare(config)
    out = Path(config.out)
    trainer = FedTrainer(prepared)
    effective = msgspec.structs.replace(config, steps=trainer.steps, minutes=0.0, layers=prepared.layers)
    if prepared.accelerator.is_main_process:
        settings.write(effective, out / CONFIG_FILE)
    trainer.train()
    prepared.accelerator.wait_for_everyone()
    if not prepared.accelerator.is_main_process:
        return {}
    return _finish(trainer, config, effective)


def _finish(trainer: FedTrainer, asked: FedHeadConfig, config: FedHeadConfig) -> dict[str, Any]:
    prepared, counts, out = trainer.prepared, trainer.counts, Path(config.out)
    device = str(prepared.vlm.device)
    draft = load_vlm(config.draft, config.model(device, "float32")) if config.draft else None
    modules = trainer.encoder, trainer.head
    for module in modules:
        module.requires_grad_(False).eval()
        round_weights(module)  # before they are measured: those that are measured are those that are served
    batches = prepared.held_out(config.held_out_samples)
    found = measure(prepared.vlm, *modules, batches, config.gamma, draft, config.head_tokens, SHOWN_DEPTHS)
    shape = save(out, trainer.encoder, trainer.head)
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
        "weights of the head": sum(weight.numel() for weight in trainer.head.parameters()),
        "weights of the bottleneck": sum(weight.numel() for weight in trainer.encoder.parameters()),
        "bytes a token": SCALE_BYTES + shape.size,
        "short list": len(shape.short_list),
        **found,
    }
    (out / RESULTS_FILE).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    trainer.checkpoint.unlink(missing_ok=True)
    return results


def dry_run(config: FedHeadConfig) -> str:
    """Do two steps, measure a few records, save, load what was saved; return what a full run would do and how long.

    Nothing is left on disk; of several processes the first one gets the line. Raises ValueError as `train` does.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="fed-head-") as folder:
        small = msgspec.structs.replace(
            config, steps=DRY_STEPS, minutes=0.0, held_out_samples=DRY_SAMPLES, out=folder, workers=0, kept=""
        )
        seconds = FedTrainer(replace(prepared, config=small)).seconds_a_step()
        results = train(small, replace(prepared, config=small))
        if not results:
            return ""
        load_encoder(Path(folder), prepared.vlm)
        load_head(Path(folder), prepared.vlm.tokenizer_fingerprint)
    plan = prepared.plan
    steps = config.steps or (
        max(1, round(60 * config.minutes / seconds)) if config.minutes else plan.steps(config.epochs)
    )
    epochs = steps * plan.records_a_step / plan.records
    head, bottleneck = results["weights of the head"] / 1e6, results["weights of the bottleneck"] / 1e6
    with_target = ", the target's forward among them" if config.kept else ""
    return (
        f"dry run: {DRY_STEPS} steps, {results['tokens']:,} tokens judged, head saved and loaded. A full run: "
        f"{plan.records:,} records, {steps:,} steps of {plan.records_a_step} = {epochs:.2f} epochs, a head of "
        f"{head:.2f} M weights with {results['short list']:,} tokens, features of layers {list(prepared.layers)} "
        f"through a bottleneck of {bottleneck:.2f} M weights to {results['bytes a token']} bytes a token, about "
        f"{gigabytes(prepared.need.total)}; at {seconds:.2f} s a step{with_target} about {duration(steps * seconds)}"
    )
