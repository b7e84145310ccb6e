"""The draft model before it learns: some layers of the target itself, or a small Llama with the target's tokens."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from adapters_training.text_draft.config import TextDraftConfig
from speculation.vlm.load import Vlm

ROPE_THETA = 10_000.0
"""Of a new draft, which reads a few hundred tokens."""
_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..+)")


def build(vlm: Vlm, config: TextDraftConfig) -> Any:
    """Return the float32 model that learns, on the target's device. Raises ValueError for a target that it cannot be
    made of."""
    if vlm.sees_images:
        raise ValueError(
            f"{vlm.folder} sees images; this trains drafts of language models alone, 'pair --role draft' one that sees"
        )
    if vlm.quantisation != "none":
        raise ValueError(f"{vlm.folder} is rounded to {vlm.quantisation}; give --quantisation none, or its own weights")
    torch.manual_seed(config.seed)
    model = _cut(vlm, config.layers) if config.layers else _new(vlm, config)
    model.generation_config.eos_token_id = list(vlm.eos)
    return model.float().to(vlm.device).requires_grad_(True)


def write(model: Any, vlm: Vlm, folder: Path) -> None:
    """Write a model folder: bfloat16 weights, config, and the target's own tokenizer and chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(str(folder))
    model.to(torch.float32)
    vlm.processor.save(folder)


def _cut(vlm: Vlm, layers: tuple[int, ...]) -> Any:
    """Return embedding, `layers`, norm and head of the target as a model of its own."""
    config = copy.deepcopy(vlm.model.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    model = type(vlm.model)._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    place = {layer: number for number, layer in enumerate(layers)}
    kept = {}
    for name, weight in vlm.model.state_dict().items():
        found = _LAYER.fullmatch(name)
        if found is None:
            kept[name] = weight
        elif int(found[2]) in place:
            kept[f"{found[1]}{place[int(found[2])]}{found[3]}"] = weight
    model.load_state_dict(kept)
    return model


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
