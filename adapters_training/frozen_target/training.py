"""A training on a frozen target from its settings to its folder: training, results, command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from adapters_training.command import Command
from adapters_training.files import filling, replacing
from adapters_training.frozen_target.config import FrozenTargetConfig
from adapters_training.frozen_target.preparation import prepare
from adapters_training.frozen_target.trainer import F, FrozenTrainer
from adapters_training.trainer import CHECKPOINT_FILE

RESULTS_FILE = "results.json"


def train(kind: type[FrozenTrainer[F]], config: F) -> dict[str, Any]:
    """Train or go on, measure on held-out data, write the folder; return what results.json holds.

    Returns nothing in every process but the first. Raises ValueError, in one sentence, for what cannot be trained,
    OSError for a full disk, and TrainingFailed where the loss has risen: nothing is written then.
    """
    trainer = kind(prepare(kind, config))
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


def training_command(name: str, text: str, about: str | None, kind: type[FrozenTrainer[Any]]) -> Command[Any]:
    """Return the command of a training."""

    def run(config: Any, _: argparse.Namespace) -> int:
        """Train unless that was done, and print what came of it.

        Raises ValueError where --out holds what other settings made.
        """
        results, out = finished_results(config), Path(config.out)
        if results is not None:
            print(f"{out} holds {kind.made} of these settings already; delete the folder to train anew")
        elif (out / kind.file).exists() and not (out / CHECKPOINT_FILE).exists():
            raise ValueError(f"--out {out} holds {kind.made} of other settings; choose another folder, or delete it")
        results = results or train(kind, config)
        if results:
            print("\n".join(kind.table(results)))
        return 0

    return Command(name, text, about, kind.kind, run)
