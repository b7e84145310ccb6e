"""Distil a small draft model for a language model of your own.

It learns the target's distribution at every token of the data's answers. Best are the target's own answers: what it
drafts behind are these (sequence-level distillation, Kim and Rush, arXiv 1606.07947).

data (any mix, local files): conversations of text (.json, .jsonl), as `answers` writes them for a language model.
writes: a model folder (config.json, model.safetensors in bfloat16, the target's tokenizer and chat template),
  config.yaml (every setting as it was used), results.json (tokens a verification on held-out answers), tensorboard/.

A killed run goes on when it is started again with the same words, and ends with the same weights. Several GPUs or
nodes: `accelerate launch -m adapters_training text-draft ...` (or torchrun).

examples:
  python -m adapters_training answers --model TARGET --data questions.jsonl --out out/answers.jsonl --frames 2000
  python -m adapters_training text-draft --target TARGET --data out/answers.jsonl --out out/draft
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from adapters_training.fed_head.acceptance import ModelDrafter, measure
from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.hidden_states import read
from adapters_training.frozen_target.trainer import FrozenTargetConfig, FrozenTrainer
from adapters_training.frozen_target.training import training_command
from adapters_training.packing import IGNORE
from adapters_training.shapes import parameters
from adapters_training.trainer import StepLosses
from speculation.file_modes import share
from speculation.vlm.forward import final_logits
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.wire import MAX_DRAFT_TOKENS

ROPE_THETA = 10_000.0
"""Of a new draft, which reads a few hundred tokens."""


class TextDraftConfig(FrozenTargetConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one distillation."""

    width: Annotated[int, Meta(ge=8, description="of the draft")] = 256
    depth: Annotated[int, Meta(ge=1, le=128, description="decoder layers")] = 4
    heads: Annotated[int, Meta(ge=1, description="attention heads")] = 4
    intermediate: Annotated[int, Meta(ge=0, description="width of the feed-forward part; 0: 3 x --width")] = 0
    gamma: Annotated[
        int, Meta(ge=1, le=MAX_DRAFT_TOKENS, description="draft tokens a verification, where it is measured")
    ] = 4


class TextDraftTrainer(FrozenTrainer[TextDraftConfig]):
    """One draft model in training. Losses [1, 2] are the divergence from the target, nats, and agreements with it."""

    name, kind, made, file = "text draft", TextDraftConfig, "a draft", "model.safetensors"
    smaller = "--context, --batch, --head-tokens or --width"

    def build(self, config: TextDraftConfig) -> nn.Module:
        self.model = new_draft(self.vlm, config)
        trained: nn.Module = self.model
        return trained

    @staticmethod
    def layers_of(config: TextDraftConfig, text: Mapping[str, Any]) -> tuple[int, ...]:
        return ()

    @staticmethod
    def weights_of(config: TextDraftConfig, text: Mapping[str, Any], layers: int) -> int:
        width, inner = config.width, config.intermediate or 3 * config.width
        return width * (int(text["vocab_size"]) + config.depth * (4 * width + 3 * inner))

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
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
        return float(means[0, 0])

    def figures(self, means: Tensor) -> dict[str, float]:
        return dict(zip(("divergence", "agreement"), means[0].tolist(), strict=True))

    def finish(self, config: TextDraftConfig, folder: Path) -> dict[str, Any]:
        # What is measured is what a robot loads.
        write(self.model, self.vlm, folder)
        draft = load_vlm(folder, config.model(str(self.vlm.device), "float32"))
        batches = self.prepared.held_out(config.held_out_samples)
        found = measure(self.vlm, {"draft": ModelDrafter(self.vlm, draft, config.gamma)}, batches, config.gamma)
        found["draft"]["agreement"] = found["draft"]["right at depth"][0]
        return {"weights of the draft": parameters(self.model), **found}

    @staticmethod
    def table(results: Mapping[str, Any]) -> Sequence[str]:
        found = results["draft"]
        return [
            f"{results['tokens']:,} held-out tokens, of which the target itself chooses {results['own']:.1%}",
            f"{results['weights of the draft'] / 1e6:.2f} M weights: right in {found['agreement']:.1%}, "
            f"{found['tokens a verification']:.2f} tokens a verification of {results['gamma']} drafted ones",
        ]


def new_draft(vlm: Vlm, config: TextDraftConfig) -> Any:
    """Return the float32 model that learns, on the target's device. Raises ValueError for a target that it cannot be
    made of."""
    if vlm.sees_images:
        raise ValueError(
            f"{vlm.folder} sees images; this trains drafts of language models alone, 'pair --role draft' one that sees"
        )
    if vlm.quantisation != "none":
        raise ValueError(f"{vlm.folder} is rounded to {vlm.quantisation}; give --quantisation none, or its own weights")
    torch.manual_seed(config.seed)
    model = _new(vlm, config)
    model.generation_config.eos_token_id = list(vlm.eos)
    return model.float().to(vlm.device).requires_grad_(True)


def write(model: Any, vlm: Vlm, folder: Path) -> None:
    """Write a model folder: bfloat16 weights, config, and the target's own tokenizer and chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(str(folder))
    share(*folder.glob("*.safetensors"))
    model.to(torch.float32)
    vlm.processor.save(folder)


def _new(vlm: Vlm, config: TextDraftConfig) -> Any:
    if config.width % config.heads or (config.width // config.heads) % 2:
        raise ValueError(
            f"--width {config.width} is no even number of channels for each of --heads {config.heads}; "
            "give a width that is a multiple of twice the heads"
        )
    table: Tensor = vlm.text.embed_tokens.weight
    pad = vlm.tokenizer.pad_token_id
    described = LlamaConfig(
        vocab_size=len(table),
        hidden_size=config.width,
        intermediate_size=config.intermediate or 3 * config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=vlm.context,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=None,
        eos_token_id=vlm.eos[0],
        pad_token_id=pad if pad is not None else vlm.eos[0],
        tie_word_embeddings=True,
    )
    factory: Any = LlamaForCausalLM
    model = factory._from_config(described, attn_implementation="sdpa", dtype=torch.float32)
    _take_tokens(table, model.model.embed_tokens)
    return model


@torch.no_grad()
def _take_tokens(table: Tensor, embedding: nn.Embedding) -> None:
    """Let a narrower embedding begin as the target's, projected on its own principal directions.

    Of all linear maps to that width they keep the most of the distances between tokens (Eckart and Young, 1936), so
    that the draft does not have to learn tokens that its data hardly have. They are scaled for first logits of
    variance 1, since the table is the head as well.
    """
    wide = table.float()
    _, directions = torch.linalg.eigh(wide.T @ wide)
    taken = wide @ directions.flip(-1)[:, : embedding.embedding_dim]
    taken *= (taken.square().mean() * embedding.embedding_dim).rsqrt()
    embedding.weight[:, : taken.shape[1]] = taken.to(embedding.weight.device)


COMMAND = training_command("text-draft", "distil a draft model of a language model alone", __doc__, TextDraftTrainer)
