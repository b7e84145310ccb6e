"""Distil a draft model: the target's own distribution at every token of its own answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training.exits.batches import Batch
from adapters_training.exits.memory import ADAM_BYTES, LOGIT_COPIES, Need
from adapters_training.exits.preparation import Prepared, open_target
from adapters_training.exits.target import read
from adapters_training.exits.trainer import StepLosses, Trainer
from adapters_training.packing import IGNORE
from adapters_training.text_draft.config import TextDraftConfig
from adapters_training.text_draft.model import build
from speculation.vlm.folder import stored_tensors, weight_files
from speculation.vlm.forward import final_logits
from speculation.vlm.memory import BYTES, available_bytes, gigabytes, text_config, weight_bytes
from speculation.vlm.settings import Quantisation

ACTIVATIONS = 24
"""Float32 numbers of the draft's width that a layer keeps for a token: input, projections, feed-forward part."""


def prepare(config: TextDraftConfig) -> Prepared[TextDraftConfig]:
    """Check and open everything. Raises ValueError, in one sentence, for what cannot be trained on."""

    def layers(text: dict[str, Any]) -> tuple[int, ...]:
        count = int(text["num_hidden_layers"])
        if list(config.layers) != sorted(set(config.layers)) or any(not 0 <= each < count for each in config.layers):
            raise ValueError(
                f"--layers {' '.join(map(str, config.layers))}: give distinct layers of 0 to {count - 1}, ascending"
            )
        return config.layers

    def need(folder: Path, described: dict[str, Any], count: int, device: str, dtype: str) -> Need:
        return memory_of(folder, described, config, device, dtype)

    return open_target(config, layers, need)


def memory_of(folder: Path, described: dict[str, Any], config: TextDraftConfig, device: str, dtype: str) -> Need:
    """Return what a distillation needs. Raises ValueError, in a sentence, if `device` has less memory free.

    `described` is the target's config.json.
    """
    text = text_config(described)
    hidden, vocabulary, tokens = int(text["hidden_size"]), int(text["vocab_size"]), config.batch * config.context
    width, depth, inner = config.width, config.depth, config.intermediate or 3 * config.width
    if config.layers:
        width, depth, inner = hidden, len(config.layers), int(text["intermediate_size"])
    weights = width * (vocabulary + depth * (4 * width + 3 * inner))
    step = tokens * (4 * hidden + 3 * int(text["intermediate_size"])) * BYTES[dtype]
    step += 4 * tokens * depth * ACTIVATIONS * width
    step += 4 * min(config.head_tokens, tokens) * vocabulary * LOGIT_COPIES
    target = weight_bytes(stored_tensors(weight_files(folder)), dtype, Quantisation(config.quantisation))
    need = Need(target, weights * ADAM_BYTES, step)
    free = available_bytes(device)
    if need.total > free:
        raise ValueError(
            f"too little memory: distilling a draft of {folder} needs about {gigabytes(need.total)} (target "
            f"{gigabytes(need.target)}, draft {gigabytes(need.adapters)}, a step {gigabytes(need.step)}), {device} has "
            f"{gigabytes(free)} free; try --dtype bfloat16, or less --context, --batch, --head-tokens or --width"
        )
    return need


class TextDraftTrainer(Trainer[TextDraftConfig]):
    """One draft model in training. Losses [1, 2] are the divergence from the target, nats, and agreements with it."""

    def __init__(self, prepared: Prepared[TextDraftConfig]) -> None:
        """Make the draft, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        self.model = build(prepared.vlm, prepared.config)
        super().__init__(prepared, self.model)

    @property
    def name(self) -> str:
        """See `Trainer.name`."""
        return "text draft"

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
        """Add the gradients of one step's forwards, summed over their tokens."""
        vlm, accelerator, config = self.prepared.vlm, self.prepared.accelerator, self.prepared.config
        total = StepLosses(torch.zeros(1, 2, dtype=torch.float64), 0, 0, {"cut": 0, "passed": 0})
        for batch in batches:
            for problem in batch.problems:
                tqdm.write(f"passed over: {problem}")
            batch = batch.to(vlm.device)
            with accelerator.autocast():
                taught = read(vlm, batch, ())
                read_by = self.model.model(batch.ids, position_ids=batch.positions[0], use_cache=False)
            hidden = read_by.last_hidden_state[batch.labels != IGNORE].float()
            # The graph of the logits is freed part by part; only this gradient goes on to the layers.
            leaf = hidden.detach().requires_grad_()
            for at in range(0, len(leaf), config.head_tokens):
                part = slice(at, at + config.head_tokens)
                total.losses += self._backward(leaf[part], taught.last[part])
            hidden.backward(leaf.grad)
            total.learned += len(taught.labels)
            total.tokens += taught.tokens
            total.counts["cut"] += batch.truncated
            total.counts["passed"] += len(batch.problems)
        return total

    def _backward(self, hidden: Tensor, last: Tensor) -> Tensor:
        vlm = self.prepared.vlm
        with torch.no_grad():
            truth = final_logits(vlm, last).float().log_softmax(-1)
        log = self.model.lm_head(hidden)[:, : vlm.vocabulary].log_softmax(-1)
        divergence = F.kl_div(log, truth, log_target=True, reduction="sum")
        self.prepared.accelerator.backward(divergence)
        agreed = (log.argmax(-1) == truth.argmax(-1)).sum()
        return torch.tensor([[float(divergence.detach()), float(agreed)]], dtype=torch.float64)

    def loss_of(self, means: Tensor) -> float:
        """See `Trainer.loss_of`."""
        return float(means[0, 0])

    def log(self, writer: SummaryWriter, means: Tensor) -> None:
        """See `Trainer.log`."""
        divergence, agreed = means[0].tolist()
        writer.add_scalar("divergence", divergence, self.step)
        writer.add_scalar("agreement", agreed, self.step)
