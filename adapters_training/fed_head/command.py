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
from pathlib import Path
from typing import Any

from adapters_training import settings
from adapters_training.fed_head.config import FedHeadConfig


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    line = commands.add_parser(
        "fed-head", help="train a draft head that a frozen target feeds", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    settings.add_options(line, FedHeadConfig)
    line.add_argument("--dry-run", action="store_true", help="two steps, a measurement, and how long all of it takes")
    line.add_argument("--overwrite", action="store_true", help="replace a head of other settings in --out")
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command. Raises ValueError, in one sentence, for what cannot be trained."""
    config = settings.read(FedHeadConfig, options)
    import torch

    try:
        return _run(config, options)
    except torch.OutOfMemoryError:
        raise ValueError("the GPU ran out of memory: give less --context, --batch, --depths or --head-tokens") from None
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _run(config: FedHeadConfig, options: argparse.Namespace) -> int:
    from adapters_training.exits.run import finished_results
    from adapters_training.fed_head.run import dry_run, train

    if options.dry_run:
        line = dry_run(config)
        if line:
            print(line)
        return 0
    results = finished_results(config)
    if results is not None:
        print(f"{config.out} holds the head of these settings already; delete it to train anew")
    else:
        _refuse_others(Path(config.out), options.overwrite)
        results = train(config)
    if results:
        print("\n".join(table(results)))
    return 0


def _refuse_others(out: Path, overwrite: bool) -> None:
    from adapters_training.exits.trainer import CHECKPOINT_FILE
    from speculation.fed.files import CONFIG_FILE

    if (out / CONFIG_FILE).exists() and not (out / CHECKPOINT_FILE).exists() and not overwrite:
        raise ValueError(f"--out {out} holds a head of other settings; choose another folder, or add --overwrite")


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
