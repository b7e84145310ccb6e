"""Distil a draft model: the target's own distribution at every token of its own answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adapters_training.fed_head.measuring import measure_draft
from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.memory import ACTIVATIONS, LOGIT_COPIES
from adapters_training.frozen_target.target import read
from adapters_training.frozen_target.trainer import FrozenTrainer, Prepared
from adapters_training.packing import IGNORE
from adapters_training.shapes import parameters
from adapters_training.text_draft.config import TextDraftConfig
from adapters_training.text_draft.model import build, write
from adapters_training.trainer import StepLosses
from speculation.vlm.forward import final_logits
from speculation.vlm.load import load_vlm
from speculation.vlm.memory import BYTES


class TextDraftTrainer(FrozenTrainer[TextDraftConfig]):
    """One draft model in training. Losses [1, 2] are the divergence from the target, nats, and agreements with it."""

    name, kind, made, file = "text draft", TextDraftConfig, "a draft", "model.safetensors"
    smaller = "--context, --batch, --head-tokens or --width"

    def __init__(self, prepared: Prepared[TextDraftConfig]) -> None:
        """Make the draft, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        self.model = build(prepared.vlm, prepared.config)
        super().__init__(prepared, self.model)

    @staticmethod
    def layers_of(config: TextDraftConfig, text: Mapping[str, Any]) -> tuple[int, ...]:
        """See `FrozenTrainer.layers_of`."""
        count = int(text["num_hidden_layers"])
        if list(config.layers) != sorted(set(config.layers)) or any(not 0 <= each < count for each in config.layers):
            raise ValueError(
                f"--layers {' '.join(map(str, config.layers))}: give distinct layers of 0 to {count - 1}, ascending"
            )
        return config.layers

    @staticmethod
    def memory_of(config: TextDraftConfig, text: Mapping[str, Any], layers: int, dtype: str) -> tuple[int, float]:
        """See `FrozenTrainer.memory_of`."""
        hidden, vocabulary, tokens = int(text["hidden_size"]), int(text["vocab_size"]), config.batch * config.context
        width, depth, inner = config.width, config.depth, config.intermediate or 3 * config.width
        if layers:
            width, depth, inner = hidden, layers, int(text["intermediate_size"])
        step = tokens * (4 * hidden + 3 * int(text["intermediate_size"])) * BYTES[dtype]
        step += 4 * tokens * depth * ACTIVATIONS * width
        step += 4 * min(config.head_tokens, tokens) * vocabulary * LOGIT_COPIES
        return width * (vocabulary + depth * (4 * width + 3 * inner)), step

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
        """See `Trainer.learn`."""
        total = StepLosses(torch.zeros(1, 2, dtype=torch.float64))
        for batch in batches:
            self.count(batch, total)
            batch = batch.to(self.vlm.device)
            with self.autocast():
                taught = read(self.vlm, batch, ())
                read_by = self.model.model(batch.ids, position_ids=batch.positions[0], use_cache=False)
            hidden = read_by.last_hidden_state[batch.labels != IGNORE].float()
            # The graph of the logits is freed part by part; only this gradient goes on to the layers.
            leaf = hidden.detach().requires_grad_()
            for at in range(0, len(leaf), self.config.head_tokens):
                part = slice(at, at + self.config.head_tokens)
                total.losses += self._backward(leaf[part], taught.last[part])
            hidden.backward(leaf.grad)
            total.learned += len(taught.labels)
        return total

    def _backward(self, hidden: Tensor, last: Tensor) -> Tensor:
        with torch.no_grad():
            truth = final_logits(self.vlm, last).float().log_softmax(-1)
        log = self.model.lm_head(hidden)[:, : self.vlm.vocabulary].log_softmax(-1)
        divergence = F.kl_div(log, truth, log_target=True, reduction="sum")
        divergence.backward()  # type: ignore[no-untyped-call]
        agreed = (log.argmax(-1) == truth.argmax(-1)).sum()
        return torch.tensor([[float(divergence.detach()), float(agreed)]], dtype=torch.float64)

    def loss_of(self, means: Tensor) -> float:
        """See `Trainer.loss_of`."""
        return float(means[0, 0])

    def figures(self, means: Tensor) -> dict[str, float]:
        """See `Trainer.figures`."""
        return dict(zip(("divergence", "agreement"), means[0].tolist(), strict=True))

    def finish(self, config: TextDraftConfig, folder: Path) -> dict[str, Any]:
        """See `FrozenTrainer.finish`; what is measured is what a robot loads."""
        write(self.model, self.vlm, folder)
        draft = load_vlm(folder, config.model(str(self.vlm.device), "float32"))
        batches = self.prepared.held_out(config.held_out_samples)
        found = measure_draft(self.vlm, draft, batches, config.gamma)
        return {"weights of the draft": parameters(self.model), **found}

    def load(self, folder: Path) -> None:
        """See `FrozenTrainer.load`."""
        load_vlm(folder, self.config.model("cpu", "float32"))

    def described(self, results: Mapping[str, Any]) -> str:
        """See `FrozenTrainer.described`."""
        return f"a draft of {results['weights of the draft'] / 1e6:.2f} M weights"

    @staticmethod
    def table(results: Mapping[str, Any]) -> Sequence[str]:
        """See `FrozenTrainer.table`."""
        found = results["draft"]
        return [
            f"{results['tokens']:,} held-out tokens, of which the target itself chooses {results['own']:.1%}",
            f"{results['weights of the draft'] / 1e6:.2f} M weights: right in {found['agreement']:.1%}, "
            f"{found['tokens a verification']:.2f} tokens a verification of {results['gamma']} drafted ones",
        ]
