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
      --data sg_90k_part1.json --out out/vicuna-exits
  python -m adapters_training exits --config config/exits/embedded_pair.yaml --target models/target --data out/data \\
      --held-out out/held-out --out out/exits --steps 400

time: the progress bar estimates it; try everything first with --steps 2 and another --out. The paper's took 117 to 136
hours of an A100 for a 7 B target (Table 2); the embedded pair's takes minutes on two CPU cores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn
from tqdm import tqdm

from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.hidden_states import exit_logits, read
from adapters_training.frozen_target.trainer import FrozenTargetConfig, FrozenTrainer
from adapters_training.frozen_target.training import training_command
from adapters_training.trainer import StepLosses
from speculation.exits import WEIGHTS_FILE, ExitHeads, measure_reliability
from speculation.vlm.forward import final_logits
from speculation.vlm.model import Vlm


class Loss(str, Enum):
    """What an exit learns: the data's tokens (the paper's), or the last layer's distribution."""

    CE = "ce"
    KL = "kl"


class ExitsConfig(FrozenTargetConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one training of exits, with the Early Exits paper's defaults (see `frozen_target.trainer`).

    The paper names no rank; its 3.26 M weights an exit at a width of 4096 are a bottleneck of about 400.
    """

    layers: Annotated[tuple[int, ...], Meta(description="exit after these layers, from 0; none: all but the last")] = ()
    rank: Annotated[int, Meta(ge=1, description="width of the adapters' bottleneck")] = 400
    loss: Annotated[Loss, Meta(description="ce: the data's tokens; kl: the last layer's distribution")] = Loss.CE


class ExitTrainer(FrozenTrainer[ExitsConfig]):
    """The adapters of one target in training. Losses [exits] are cross-entropy or divergence, nats."""

    kind, made, file = ExitsConfig, "exits", WEIGHTS_FILE
    smaller = "--context, --batch, --head-tokens, --rank or --layers"

    def build(self, config: ExitsConfig) -> nn.Module:
        torch.manual_seed(config.seed)
        self.name = f"exits ({config.loss.value})"
        self.heads = ExitHeads(self.vlm, self.prepared.layers, config.rank)
        return self.heads.adapters.float()

    @staticmethod
    def layers_of(config: ExitsConfig, text: Mapping[str, Any]) -> tuple[int, ...]:
        count, hidden = int(text["num_hidden_layers"]), int(text["hidden_size"])
        layers = config.layers or tuple(range(count - 1))
        if list(layers) != sorted(set(layers)) or not layers or layers[0] < 0 or layers[-1] > count - 2:
            shown = " ".join(map(str, layers))
            raise ValueError(f"--layers {shown}: give distinct layers of 0 to {count - 2}, ascending")
        if config.rank >= hidden:
            raise ValueError(
                f"--rank {config.rank} is no bottleneck in a target of width {hidden}; give less, such as 64"
            )
        return layers

    @staticmethod
    def weights_of(config: ExitsConfig, text: Mapping[str, Any], layers: int) -> int:
        return layers * 2 * int(text["hidden_size"]) * config.rank

    @property
    def clipped_apart(self) -> Sequence[Sequence[Tensor]]:
        """Each adapter is clipped by itself: they do not depend on each other."""
        return [list(adapter.parameters()) for adapter in self.heads.adapters.values()]

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
        total = StepLosses(torch.zeros(len(self.heads.layers), dtype=torch.float64))
        for batch in batches:
            self.count(batch, total)
            with self.autocast():
                features = read(self.vlm, batch.to(self.vlm.device), self.heads.layers)
            for at in range(0, len(features.labels), self.config.head_tokens):
                part = slice(at, at + self.config.head_tokens)
                hidden = {layer: states[part] for layer, states in features.hidden.items()}
                total.losses += self._backward(hidden, features.last[part], features.labels[part]).cpu()
            total.learned += len(features.labels)
        return total

    def _backward(self, hidden: dict[int, Tensor], last: Tensor, labels: Tensor) -> Tensor:
        losses = torch.zeros(len(hidden), dtype=torch.float64, device=last.device)
        with torch.no_grad():
            truth = final_logits(self.vlm, last).float().log_softmax(-1) if self.config.loss is Loss.KL else None
        for row, (layer, states) in enumerate(hidden.items()):
            log = exit_logits(self.vlm, self.heads, layer, states).float().log_softmax(-1)
            if truth is None:
                loss = F.nll_loss(log, labels, reduction="sum")
            else:
                loss = F.kl_div(log, truth, log_target=True, reduction="sum")
            losses[row] = loss.detach()
            # Each exit's graph is freed before the next one's logits are made.
            loss.backward()  # type: ignore[no-untyped-call]
        return losses

    def loss_of(self, means: Tensor) -> float:
        return float(means.mean())

    def figures(self, means: Tensor) -> dict[str, float]:
        return {f"loss/exit_{layer}": loss for layer, loss in zip(self.heads.layers, means.tolist(), strict=True)}

    def finish(self, config: ExitsConfig, folder: Path) -> dict[str, Any]:
        # Measured as they are served, in the target's dtype.
        self.heads.adapters.to(self.vlm.dtype).requires_grad_(False)
        found = measure(self.vlm, self.heads, self.prepared.held_out(config.held_out_samples), config.head_tokens)
        agreed, bare = (sum(found[name].values()) for name in ("agreement", "agreement without adapter"))
        if agreed < bare:
            count = len(self.heads.layers)
            tqdm.write(
                f"warning: these exits agree with the last layer in {agreed / count:.1%} of {found['tokens']} held-out "
                f"tokens, without adapters it is {bare / count:.1%}; if the data's tokens are those of the target, "
                f"{self.remedy}",
                file=sys.stderr,
            )
        self.heads.save(folder)
        return found

    @staticmethod
    def table(results: Mapping[str, Any]) -> Sequence[str]:
        # Layers are text once the results were JSON.
        rates = {int(layer): rate for layer, rate in results["agreement"].items()}
        lines = [
            f"agreement with the last layer on {results['tokens']:,} held-out tokens",
            f"{'after layer':>11s} {'no adapter':>11s} {results['asked']['loss']:>9s}",
        ]
        for layer, bare in results["agreement without adapter"].items():
            lines.append(f"{layer:>11} {bare:11.1%} {rates[int(layer)]:9.1%}")
        return lines


@torch.no_grad()
def measure(vlm: Vlm, heads: ExitHeads, batches: Iterable[Batch], head_tokens: int) -> dict[str, Any]:
    """Measure every exit, as it is served, and set its reliability table.

    Returns by layer how often an exit's first choice is the last layer's, with its adapter and without, and the mean
    cross-entropy to the data and divergence from the last layer, nats; `tokens` is how many were judged. Raises
    ValueError without a token to judge.
    """
    judged: dict[int, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in heads.layers}
    names = ("agreement", "agreement without adapter", "cross-entropy", "divergence")
    sums = {name: dict.fromkeys(heads.layers, 0.0) for name in names}
    tokens = 0
    for batch in batches:
        features = read(vlm, batch.to(vlm.device), heads.layers)
        for at in range(0, len(features.labels), head_tokens):
            part = slice(at, at + head_tokens)
            labels = features.labels[part]
            tokens += len(labels)
            truth = final_logits(vlm, features.last[part]).float().log_softmax(-1)
            for layer in heads.layers:
                hidden, choices = features.hidden[layer][part], truth.argmax(-1)
                log = heads.logits(layer, hidden).float().log_softmax(-1)
                confidence, token = log.exp().max(-1)
                agreed, bare = token == choices, final_logits(vlm, hidden).argmax(-1) == choices
                judged[layer].append((confidence.cpu(), agreed.cpu()))
                loss = F.nll_loss(log, labels, reduction="sum")
                divergence = F.kl_div(log, truth, log_target=True, reduction="sum")
                for name, value in zip(names, (agreed.sum(), bare.sum(), loss, divergence), strict=True):
                    sums[name][layer] += float(value)
    if not tokens:
        raise ValueError("the held-out data hold no token to measure exits on")
    tables = {}
    for layer, found in judged.items():
        confidences, agreements = (torch.cat(each).tolist() for each in zip(*found, strict=True))
        tables[layer] = measure_reliability(confidences, agreements)
    heads.set_reliability(tables)
    means = {name: {layer: total / tokens for layer, total in by_layer.items()} for name, by_layer in sums.items()}
    return {"tokens": tokens, **means}


COMMAND = training_command("exits", "train early-exit adapters on a frozen target", __doc__, ExitTrainer)
