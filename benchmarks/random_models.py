"""Targets of real sizes with random weights: they take the time and memory of a checkpoint that is not here.

Language model and head only, as verification runs them; the vision tower is a token one. Sizes are those of the
checkpoints' config.json on the hub (docs/training.md).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from speculation.vlm.load import DTYPES, Vlm
from speculation.vlm.processing import Processor

TOKENS = 151_657
"""Tokens of Qwen2-VL's tokenizer, to which logits are cut; the heads are padded beyond."""


@dataclass(frozen=True)
class TextShape:
    """A decoder: `vocabulary` are the rows of its embedding, and of its head unless that is `tied` to it."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Weights of layers, embedding and head."""
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.hidden * self.kv_heads // self.heads
        rows = self.vocabulary * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.hidden * self.mlp) + rows * self.hidden


SHAPES = {
    "qwen2-vl-2b": TextShape(1536, 28, 12, 2, 8960, 151_936, True),
    "qwen2-vl-7b": TextShape(3584, 28, 28, 4, 18_944, 152_064, False),
    "qwen2.5-vl-3b": TextShape(2048, 36, 16, 2, 11_008, 151_936, True),
    "qwen2.5-vl-7b": TextShape(3584, 28, 28, 4, 18_944, 152_064, False),
}


def random_vlm(name: str, layers: int | None = None, device: str = "cpu", dtype: str = "float32") -> Vlm:
    """Return a target of a known shape, with fewer `layers` if given. It has no tokenizer and can prepare no prompt.

    Raises ValueError, before anything is built, for an unknown shape or too little memory.
    """
    if name not in SHAPES or dtype not in DTYPES:
        raise ValueError(f"--shape {name} in {dtype}: known are {', '.join(SHAPES)} in {', '.join(DTYPES)}")
    shape = SHAPES[name] if layers is None else replace(SHAPES[name], layers=layers)
    if not 2 <= shape.layers <= SHAPES[name].layers:
        raise ValueError(f"--layers {layers}: {name} has {SHAPES[name].layers}, give 2 or more of them")
    _check_memory(shape, device, DTYPES[dtype])
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.mlp,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        vision_config={"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": shape.hidden, "mlp_ratio": 2},
        tie_word_embeddings=shape.tied,
    )
    build: Any = Qwen2VLForConditionalGeneration._from_config
    with torch.device(device):
        model = build(config, attn_implementation="sdpa", dtype=DTYPES[dtype])
    return Vlm(
        model=model.eval().requires_grad_(False),
        processor=cast(Processor, None),
        num_layers=shape.layers,
        vocabulary=TOKENS,
        eos=(),
        fingerprint=f"random {name}",
        tokenizer_fingerprint="none",
        folder=Path(name),
    )


def _check_memory(shape: TextShape, device: str, dtype: torch.dtype) -> None:
    need = shape.parameters * dtype.itemsize
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ValueError(f"--device {device}: torch sees no GPU here")
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if need > 0.9 * free:
        raise ValueError(
            f"{shape.parameters / 1e9:.1f} billion weights need {need / 1e9:.1f} GB, {device} has {free / 1e9:.1f} GB "
            "free; give fewer --layers or --dtype bfloat16"
        )
