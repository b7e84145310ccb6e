"""Train all exits of a frozen target on one forward a batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from adapters_training.exits.config import ExitsConfig, Loss
from adapters_training.exits.measuring import measure
from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.memory import LOGIT_COPIES
from adapters_training.frozen_target.target import exit_logits, read
from adapters_training.frozen_target.trainer import FrozenTrainer, Prepared
from adapters_training.trainer import StepLosses
from speculation.exits import WEIGHTS_FILE, ExitHeads
from speculation.vlm.forward import final_logits
from speculation.vlm.memory import BYTES


class ExitTrainer(FrozenTrainer[ExitsConfig]):
    """The adapters of one target in training. Losses [exits, 2] are cross-entropy and divergence, nats."""

    kind, made, file = ExitsConfig, "exits", WEIGHTS_FILE
    smaller = "--context, --batch, --head-tokens, --rank or --layers"

    def __init__(self, prepared: Prepared[ExitsConfig]) -> None:
        """Make adapters, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        config = prepared.config
        torch.manual_seed(config.seed)
        self.name = f"exits ({config.loss.value})"
        self.heads = ExitHeads(prepared.vlm, prepared.layers, config.rank)
        self.heads.adapters.float()
        # Cross-entropy's weight in the loss; the divergence from the last layer has the rest.
        self._ce = {Loss.CE: 1.0, Loss.KL: 0.0, Loss.MIX: config.ce_share}[config.loss]
        super().__init__(prepared, self.heads.adapters)

    @staticmethod
    def layers_of(config: ExitsConfig, text: Mapping[str, Any]) -> tuple[int, ...]:
        """See `FrozenTrainer.layers_of`."""
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
    def memory_of(config: ExitsConfig, text: Mapping[str, Any], layers: int, dtype: str) -> tuple[int, float]:
        """See `FrozenTrainer.memory_of`."""
        hidden, tokens = int(text["hidden_size"]), config.batch * config.context
        states = tokens * (hidden * (layers + 1) + 4 * hidden + 3 * int(text["intermediate_size"]))
        logits = min(config.head_tokens, tokens) * int(text["vocab_size"]) * 4 * LOGIT_COPIES
        return layers * 2 * hidden * config.rank, states * BYTES[dtype] + logits

    @property
    def clipped_apart(self) -> Sequence[Sequence[Tensor]]:
        """Each adapter: they do not depend on each other."""
        return [list(adapter.parameters()) for adapter in self.heads.adapters.values()]

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
        """See `Trainer.learn`."""
        total = StepLosses(torch.zeros(len(self.heads.layers), 2, dtype=torch.float64))
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
        losses = torch.zeros(len(hidden), 2, dtype=torch.float64, device=last.device)
        with torch.no_grad():
            truth = final_logits(self.vlm, last).float().log_softmax(-1) if self._ce < 1 else None
        for row, (layer, states) in enumerate(hidden.items()):
            log = exit_logits(self.vlm, self.heads, layer, states).float().log_softmax(-1)
            loss = ce = F.nll_loss(log, labels, reduction="sum")
            if truth is not None:
                divergence = F.kl_div(log, truth, log_target=True, reduction="sum")
                loss = self._ce * ce + (1 - self._ce) * divergence
                losses[row, 1] = divergence.detach()
            losses[row, 0] = ce.detach()
            # Each exit's graph is freed before the next one's logits are made.
            loss.backward()  # type: ignore[no-untyped-call]
        return losses

    def loss_of(self, means: Tensor) -> float:
        """See `Trainer.loss_of`."""
        return float((self._ce * means[:, 0] + (1 - self._ce) * means[:, 1]).mean())

    def figures(self, means: Tensor) -> dict[str, float]:
        """See `Trainer.figures`."""
        kinds = ("cross-entropy", "divergence") if self._ce < 1 else ("cross-entropy",)
        return {
            f"{kind}/exit_{layer}": float(means[row, column])
            for row, layer in enumerate(self.heads.layers)
            for column, kind in enumerate(kinds)
        }

    def finish(self, config: ExitsConfig, folder: Path) -> dict[str, Any]:
        """See `FrozenTrainer.finish`; measured as they are served, in the target's dtype."""
        self.heads.adapters.to(self.vlm.dtype).requires_grad_(False)
        found = measure(self.vlm, self.heads, self.prepared.held_out(config.held_out_samples), config.head_tokens)
        agreed, bare = (sum(found[name].values()) for name in ("agreement", "agreement without adapter"))
        if agreed < bare and not self.is_trial:
            count = len(self.heads.layers)
            tqdm.write(
                f"warning: these exits agree with the last layer in {agreed / count:.1%} of {found['tokens']} held-out "
                f"tokens, without adapters it is {bare / count:.1%}; if the data's tokens are those of the target, "
                f"{self.course.remedy}",
                file=sys.stderr,
            )
        self.heads.save(folder)
        return found

    def load(self, folder: Path) -> None:
        """See `FrozenTrainer.load`."""
        ExitHeads.load(folder, self.vlm)

    def described(self, results: Mapping[str, Any]) -> str:
        """See `FrozenTrainer.described`."""
        weights = sum(each.numel() for each in self.parameters) / 1e6
        return f"{len(self.heads.layers)} exits of rank {self.config.rank} ({weights:.2f} M weights)"

    @staticmethod
    def table(results: Mapping[str, Any]) -> Sequence[str]:
        """See `FrozenTrainer.table`."""
        return compared({results["asked"]["loss"]: results})


def compared(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines that show, layer by layer, how often the exits of each loss agree with the last layer."""
    # Keys are text once they were JSON.
    rates = [{int(layer): rate for layer, rate in found["agreement"].items()} for found in results.values()]
    first = next(iter(results.values()))
    heading = f"{'after layer':>11s} {'no adapter':>11s} " + " ".join(f"{name:>9s}" for name in results)
    lines = [f"agreement with the last layer on {first['tokens']:,} held-out tokens", heading]
    for layer, bare in first["agreement without adapter"].items():
        lines.append(f"{layer:>11} {bare:11.1%} {' '.join(f'{found[int(layer)]:9.1%}' for found in rates)}")
    return lines
