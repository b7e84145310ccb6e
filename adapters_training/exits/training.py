"""Train all exits of a frozen target on one forward a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training.exits.batches import Batch
from adapters_training.exits.config import Loss, TrainingConfig
from adapters_training.exits.preparation import Prepared
from adapters_training.exits.target import exit_logits, read
from adapters_training.exits.trainer import StepLosses, Trainer
from speculation.exits import ExitHeads
from speculation.vlm.forward import final_logits


def ce_weight(config: TrainingConfig) -> float:
    """Return the weight of cross-entropy in the loss; the divergence from the last layer has the rest."""
    return {Loss.CE: 1.0, Loss.KL: 0.0, Loss.MIX: config.ce_share}[config.loss]


class ExitTrainer(Trainer[TrainingConfig]):
    """The adapters of one target in training. Losses [exits, 2] are cross-entropy and divergence, nats."""

    def __init__(self, prepared: Prepared[TrainingConfig]) -> None:
        """Make adapters, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        torch.manual_seed(prepared.config.seed)
        self.heads = ExitHeads(prepared.vlm, prepared.layers, prepared.config.rank)
        self.heads.adapters.float()
        super().__init__(prepared, self.heads.adapters)

    @property
    def name(self) -> str:
        """See `Trainer.name`."""
        return f"exits ({self.prepared.config.loss.value})"

    @property
    def clipped_apart(self) -> Sequence[nn.Module]:
        """Each adapter: they do not depend on each other."""
        return tuple(self.heads.adapters.values())

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
        """Add the gradients of one step's forwards to the adapters, summed over their tokens."""
        vlm, accelerator = self.prepared.vlm, self.prepared.accelerator
        total = StepLosses(torch.zeros(len(self.heads.layers), 2, dtype=torch.float64), 0, 0, {"cut": 0, "passed": 0})
        for batch in batches:
            for problem in batch.problems:
                tqdm.write(f"passed over: {problem}")
            with accelerator.autocast():
                features = read(vlm, batch.to(vlm.device), self.heads.layers)
            for at in range(0, len(features.labels), self.prepared.config.head_tokens):
                part = slice(at, at + self.prepared.config.head_tokens)
                hidden = {layer: states[part] for layer, states in features.hidden.items()}
                total.losses += self._backward(hidden, features.last[part], features.labels[part]).cpu()
            total.learned += len(features.labels)
            total.tokens += features.tokens
            total.counts["cut"] += batch.truncated
            total.counts["passed"] += len(batch.problems)
        return total

    def _backward(self, hidden: dict[int, Tensor], last: Tensor, labels: Tensor) -> Tensor:
        vlm, weight = self.prepared.vlm, ce_weight(self.prepared.config)
        losses = torch.zeros(len(hidden), 2, dtype=torch.float64, device=last.device)
        with torch.no_grad():
            truth = final_logits(vlm, last).float().log_softmax(-1) if weight < 1 else None
        for row, (layer, states) in enumerate(hidden.items()):
            log = exit_logits(vlm, self.heads, layer, states).float().log_softmax(-1)
            loss = ce = F.nll_loss(log, labels, reduction="sum")
            if truth is not None:
                divergence = F.kl_div(log, truth, log_target=True, reduction="sum")
                loss = weight * ce + (1 - weight) * divergence
                losses[row, 1] = divergence.detach()
            losses[row, 0] = ce.detach()
            # Each exit's graph is freed before the next one's logits are made.
            self.prepared.accelerator.backward(loss)
        return losses

    def loss_of(self, means: Tensor) -> float:
        """See `Trainer.loss_of`."""
        weight = ce_weight(self.prepared.config)
        return float((weight * means[:, 0] + (1 - weight) * means[:, 1]).mean())

    def log(self, writer: SummaryWriter, means: Tensor) -> None:
        """See `Trainer.log`."""
        weight = ce_weight(self.prepared.config)
        for row, layer in enumerate(self.heads.layers):
            writer.add_scalar(f"cross-entropy/exit_{layer}", float(means[row, 0]), self.step)
            if weight < 1:
                writer.add_scalar(f"divergence/exit_{layer}", float(means[row, 1]), self.step)
