"""Train a fed head for a target model of your own: a draft of one layer that continues from the target's features.

It sees no image: all that it knows of frame and prompt is in the target's hidden states, at most 256 bytes a token.
The target is frozen; bottleneck and head learn together, from the target's own distribution, along its own answers.

data (any mix, local files): as for `exits`. Best are the target's own answers: folders of `adapters_training answers`.
writes: fed_head.json, fed_encoder.safetensors (for the verifier), fed_head.safetensors (for the robot), config.yaml
  (every setting as it was used), results.json (tokens a verification on held-out answers), tensorboard/.

A killed run goes on when it is started again with the same words, and ends with the same weights. Several GPUs or
nodes: `accelerate launch -m adapters_training fed-head ...` (or torchrun).

examples:
  python -m adapters_training answers --model models/target --data out/data --out out/answers --frames 6000
  python -m adapters_training fed-head --config config/fed_head/embedded_pair.yaml --target models/target \\
      --data out/answers --held-out out/held-out-answers --draft models/draft --out models/fed_head --dry-run
"""

from __future__ import annotations

import argparse
from typing import Any

from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.training_command import add_training, run_training


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    add_training(
        commands, "fed-head", FedHeadConfig, _run, text="train a draft head that a frozen target feeds", about=__doc__,
        smaller="--context, --batch, --depths or --head-tokens", replace="replace a head of other settings in --out",
    )  # fmt: skip


def _run(config: FedHeadConfig, options: argparse.Namespace) -> int:
    from adapters_training.fed_head.run import dry_run, train
    from speculation.fed.files import CONFIG_FILE

    return run_training(
        config, options, dry_run=dry_run, train=train, table=table, made="a head", written=CONFIG_FILE
    )  # fmt: skip


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines that show how often drafted tokens are right by depth, and tokens a verification."""
    names = [name for name in ("head", "draft") if name in results]
    depths = range(1, results["gamma"] + 1)
    lines = [
        f"{results['tokens']:,} held-out tokens, of which the target itself chooses {results['own']:.1%}",
        f"{'':>8s} {'tokens a verification':>22s} " + " ".join(f"{f'right at {depth}':>10s}" for depth in depths),
    ]
    for name in names:
        found = results[name]
        shares = " ".join(f"{share:10.1%}" for share in found["right at depth"])
        lines.append(f"{name:>8s} {found['tokens a verification']:22.2f} {shares}")
    return lines
