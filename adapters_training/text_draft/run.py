"""One distillation from its settings to a model folder: train, write, measure."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapters_training.exits.outcome import dry_report, dry_settings, train_to_end, write_results
from adapters_training.exits.preparation import Prepared
from adapters_training.fed_head.measuring import measure_draft
from adapters_training.files import filling, resumable
from adapters_training.shapes import parameters
from adapters_training.text_draft.config import TextDraftConfig
from adapters_training.text_draft.model import write
from adapters_training.text_draft.training import TextDraftTrainer, prepare
from speculation.vlm.load import load_vlm


def train(
    config: TextDraftConfig, prepared: Prepared[TextDraftConfig] | None = None, *, trial: bool = False
) -> dict[str, Any]:
    """Train or go on, write the model folder, measure it on held-out data; return what results.json holds.

    `prepared` is of the same settings; a `trial` of a few steps need not come to anything. Raises ValueError, in one
    sentence, for what cannot be trained, OSError for a full disk, and TrainingFailed where the loss has risen: nothing
    is written then.
    """
    trainer = TextDraftTrainer(prepared or prepare(config))
    effective = train_to_end(trainer, trial=trial)
    if effective is None:
        return {}
    with resumable(trainer.checkpoint):
        return _finish(trainer, effective)


def _finish(trainer: TextDraftTrainer, config: TextDraftConfig) -> dict[str, Any]:
    prepared = trainer.prepared
    with filling(trainer.out) as part:
        write(trainer.model, prepared.vlm, part)
    # What is measured is what a robot loads.
    draft = load_vlm(trainer.out, config.model(str(prepared.vlm.device), "float32"))
    batches = prepared.held_out(config.held_out_samples)
    found = measure_draft(prepared.vlm, draft, batches, config.gamma)
    return write_results(trainer, config, {"weights of the draft": parameters(trainer.model), **found})


def dry_run(config: TextDraftConfig) -> str:
    """Do two steps, measure a few records, save, load what was saved; return what a full run would do and how long.

    Nothing is left on disk; of several processes the first one gets the line. Raises ValueError as `train` does.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="text-draft-") as folder:
        small = dry_settings(config, folder)
        seconds = TextDraftTrainer(replace(prepared, config=small)).seconds_a_step()
        results = train(small, replace(prepared, config=small), trial=True)
        if not results:
            return ""
        load_vlm(Path(folder), config.model("cpu", "float32"))
    made = f"a draft of {results['weights of the draft'] / 1e6:.2f} M weights"
    return dry_report(prepared, seconds, results["tokens"], "draft", made)
