"""One training of a fed head from its settings to its folder: train, measure, save."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapters_training.exits.outcome import dry_report, dry_settings, train_to_end, write_results
from adapters_training.exits.preparation import Prepared
from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.fed_head.measuring import measure
from adapters_training.fed_head.training import FedTrainer, prepare
from adapters_training.files import filling, resumable
from speculation.features import SCALE_BYTES
from speculation.fed.files import load_encoder, load_head, round_weights, save
from speculation.vlm.load import load_vlm

SHOWN_DEPTHS = 16
"""Depths of a draft whose shares of right tokens results.json has."""


def train(
    config: FedHeadConfig, prepared: Prepared[FedHeadConfig] | None = None, *, trial: bool = False
) -> dict[str, Any]:
    """Train or go on, measure on held-out data, write the head's folder; return what results.json holds.

    `prepared` is of the same settings; a `trial` of a few steps need not come to anything. Raises ValueError, in one
    sentence, for what cannot be trained, OSError for a full disk, and TrainingFailed where the loss has risen: nothing
    is written then.
    """
    trainer = FedTrainer(prepared or prepare(config))
    effective = train_to_end(trainer, trial=trial)
    if effective is None:
        return {}
    with resumable(trainer.checkpoint):
        return _finish(trainer, effective)


def _finish(trainer: FedTrainer, config: FedHeadConfig) -> dict[str, Any]:
    prepared = trainer.prepared
    device = str(prepared.vlm.device)
    draft = load_vlm(config.draft, config.model(device, "float32")) if config.draft else None
    modules = trainer.encoder, trainer.head
    for module in modules:
        module.requires_grad_(False).eval()
        round_weights(module)  # before they are measured: those that are measured are those that are served
    batches = prepared.held_out(config.held_out_samples)
    found = measure(prepared.vlm, *modules, batches, config.gamma, draft, config.head_tokens, SHOWN_DEPTHS)
    with filling(trainer.out) as part:
        shape = save(part, trainer.encoder, trainer.head)
    return write_results(trainer, config, {
        "weights of the head": sum(weight.numel() for weight in trainer.head.parameters()),
        "weights of the bottleneck": sum(weight.numel() for weight in trainer.encoder.parameters()),
        "bytes a token": SCALE_BYTES + shape.size,
        "short list": len(shape.short_list),
        **found,
    })  # fmt: skip


def dry_run(config: FedHeadConfig) -> str:
    """Do two steps, measure a few records, save, load what was saved; return what a full run would do and how long.

    Nothing is left on disk; of several processes the first one gets the line. Raises ValueError as `train` does.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="fed-head-") as folder:
        small = dry_settings(config, folder, kept="")
        seconds = FedTrainer(replace(prepared, config=small)).seconds_a_step()
        results = train(small, replace(prepared, config=small), trial=True)
        if not results:
            return ""
        load_encoder(Path(folder), prepared.vlm)
        load_head(Path(folder), prepared.vlm.tokenizer_fingerprint)
    head, bottleneck = results["weights of the head"] / 1e6, results["weights of the bottleneck"] / 1e6
    made = (
        f"a head of {head:.2f} M weights with {results['short list']:,} tokens, features of layers "
        f"{list(prepared.layers)} through a bottleneck of {bottleneck:.2f} M weights to {results['bytes a token']} "
        "bytes a token"
    )
    with_target = ", the target's forward among them" if config.kept else ""
    return dry_report(prepared, seconds, results["tokens"], "head", made, with_target)
