"""Train early-exit adapters for a target model of your own.

After every candidate layer of the frozen target sits a small residual adapter; the target's norm and head read a token
off it. Only adapters learn, all of them from one target forward a batch.

data (any mix, local files): ShareGPT conversations and LLaVA-style image questions (.json, .jsonl), folders of the
  simulator's frames (`adapters_training data`), rosbag2 bags that the robot recorded. Bad records are named, left out.
writes: exits.safetensors and exits.json (adapters, reliability tables), config.yaml (every setting as it was used),
  results.json (agreement with the last layer on held-out data, with and without adapters), tensorboard/.

A killed run goes on when it is started again with the same words, and ends with the same weights. Several GPUs or
nodes: `accelerate launch -m adapters_training exits ...` (or torchrun).

examples:
  python -m adapters_training exits --config config/exits/vicuna_7b.yaml --target models/vicuna-7b-v1.3 \\
      --data sg_90k_part1.json --out out/vicuna-exits --dry-run
  python -m adapters_training exits --config config/exits/embedded_pair.yaml --target models/target --data out/data \\
      --held-out out/held-out --out models/exits --steps 400

time: the dry run estimates the whole run's time on this machine. The paper's took 117 to 136 hours of an A100 for a
7 B target (Table 2); the embedded pair's takes minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from adapters_training.exits.config import ExitsConfig, Loss
from adapters_training.exits.training import ExitTrainer, compared
from adapters_training.frozen_target.trainer import FrozenTrainer
from adapters_training.frozen_target.training import (
    finished_results,
    run_command,
    train,
    training_command,
)


def compare(config: ExitsConfig) -> dict[str, dict[str, Any]]:
    """Train with cross-entropy and with KL, all else equal, into folders of `out`; return the results by loss.

    A finished one is not trained again. Raises ValueError as `train` does.
    """
    results: dict[str, dict[str, Any]] = {}
    for loss in (Loss.CE, Loss.KL):
        own = msgspec.structs.replace(config, loss=loss, out=str(Path(config.out) / loss.value))
        results[loss.value] = finished_results(own) or train(ExitTrainer, own)
        # What --minutes came to with the first loss holds for the other.
        config = msgspec.structs.replace(config, steps=results[loss.value].get("steps", config.steps), minutes=0.0)
    return results


def _run(trainer: type[FrozenTrainer[Any]], config: ExitsConfig, options: argparse.Namespace) -> int:
    if not options.compare or options.dry_run:
        return run_command(trainer, config, options)
    results = compare(config)
    if all(results.values()):
        print("\n".join(compared(results)))
        path = Path(config.out) / "compare.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(path)
    return 0


COMMAND = training_command(
    "exits", "train early-exit adapters on a frozen target", __doc__, ExitTrainer,
    {"compare": "train with ce and with kl, each in a folder of --out"}, _run,
)  # fmt: skip
