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

from adapters_training.frozen_target.training import training_command
from adapters_training.text_draft.training import TextDraftTrainer

COMMAND = training_command("text-draft", "distil a draft model of a language model alone", __doc__, TextDraftTrainer)
