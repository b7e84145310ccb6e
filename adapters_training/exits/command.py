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

from adapters_training.exits.config import TrainingConfig
from adapters_training.training_command import add_training, run_training


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    line = add_training(
        commands, "exits", TrainingConfig, _run, text="train early-exit adapters on a frozen target", about=__doc__,
        smaller="--context, --batch, --head-tokens or --rank", replace="replace exits of other settings in --out",
    )  # fmt: skip
    line.add_argument("--compare", action="store_true", help="train with ce and with kl, each in a folder of --out")


def _run(config: TrainingConfig, options: argparse.Namespace) -> int:
    from adapters_training.exits.run import compare, dry_run, train
    from speculation.exits import WEIGHTS_FILE

    if options.compare and not options.dry_run:
        _report_comparison(Path(config.out), compare(config))
        return 0
    return run_training(
        config, options, dry_run=dry_run, train=train, table=lambda found: table({config.loss.value: found}),
        made="exits", written=WEIGHTS_FILE,
    )  # fmt: skip


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines that show, layer by layer, how often each run's exits agree with the last layer."""
    first = next(iter(results.values()))
    heading = f"{'after layer':>11s} {'no adapter':>11s} " + " ".join(f"{name:>9s}" for name in results)
    lines = [f"agreement with the last layer on {first['tokens']:,} held-out tokens", heading]
    for layer, bare in first["agreement without adapter"].items():
        cells = " ".join(f"{_at(found['agreement'], layer):9.1%}" for found in results.values())
        lines.append(f"{layer:>11} {bare:11.1%} {cells}")
    return lines


def _at(rates: dict[Any, float], layer: Any) -> float:
    # Keys are text once they were JSON.
    return rates[layer] if layer in rates else rates[str(layer) if isinstance(layer, int) else int(layer)]


def _report_comparison(out: Path, results: dict[str, dict[str, Any]]) -> None:
    if not all(results.values()):
        return
    from adapters_training.exits.plots import plot_agreement

    print("\n".join(table(results)))
    (out / "compare.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    plot_agreement(results).savefig(out / "compare.png", dpi=110)
    print(f"{out / 'compare.json'}, {out / 'compare.png'}")
