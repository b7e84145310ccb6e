"""Distil a draft model for a language model of your own: a new small one, or some of the target's own layers.

It learns the target's distribution at every token of the data's answers. Best are the target's own answers: what it
drafts behind are these (sequence-level distillation, Kim and Rush, arXiv 1606.07947).

data (any mix, local files): conversations of text (.json, .jsonl), as `answers` writes them for a language model.
writes: a model folder (config.json, model.safetensors in bfloat16, the target's tokenizer and chat template),
  config.yaml (every setting as it was used), results.json (tokens a verification on held-out answers), tensorboard/.

A killed run goes on when it is started again with the same words, and ends with the same weights. Several GPUs or
nodes: `accelerate launch -m adapters_training text-draft ...` (or torchrun).

examples:
  python -m adapters_training answers --model TARGET --data questions.jsonl --out out/answers.jsonl --frames 2000
  python -m adapters_training text-draft --target TARGET --data out/answers.jsonl --out out/draft --dry-run
  python -m adapters_training text-draft --target TARGET --data out/answers.jsonl --out out/first --layers 0,1,2,3
"""

from __future__ import annotations

import argparse
from typing import Any

from adapters_training.text_draft.config import TextDraftConfig
from adapters_training.training_command import add_training, run_training


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    add_training(
        commands, "text-draft", TextDraftConfig, _run, text="distil a draft model of a language model alone",
        about=__doc__, smaller="--context, --batch, --head-tokens or --width",
        replace="replace a draft of other settings in --out",
    )  # fmt: skip


def _run(config: TextDraftConfig, options: argparse.Namespace) -> int:
    from adapters_training.text_draft.run import dry_run, train

    return run_training(
        config, options, dry_run=dry_run, train=train, table=table, made="a draft", written="model.safetensors"
    )  # fmt: skip


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines that show how often drafted tokens are right, and tokens a verification."""
    found = results["draft"]
    return [
        f"{results['tokens']:,} held-out tokens, of which the target itself chooses {results['own']:.1%}",
        f"{results['weights of the draft'] / 1e6:.2f} M weights: right in {found['agreement']:.1%}, "
        f"{found['tokens a verification']:.2f} tokens a verification of {results['gamma']} drafted ones",
    ]
