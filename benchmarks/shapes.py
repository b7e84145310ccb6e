"""Shapes of the models that the papers time, as their config.json has them; the weights are random."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from speculation.vlm.families import family_of
from speculation.vlm.families.qwen_vl import QwenFrames
from speculation.vlm.folder import ModelFolderError
from speculation.vlm.memory import available_bytes, gigabytes
from speculation.vlm.model import Vlm
from speculation.vlm.processing import Processor

QWEN2_TOKENS = 151657
QWEN2_5_TOKENS = 151665
QWEN3_TOKENS = 151669


@dataclass(frozen=True)
class Shape:
    """One model: its type, the length of its tokenizer, and its config's values for decoder and vision tower."""

    kind: str
    tokens: int
    text: dict[str, Any]
    vision: dict[str, Any] = field(default_factory=dict)
    tied: bool = False


def _text(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, rows: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads,
             "num_key_value_heads": kv_heads, "vocab_size": rows}  # fmt: skip
    return {**sizes, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0, **more}


def _mrope(section: tuple[int, int, int], theta: float = 1e6, context: int = 32768) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": theta, "mrope_section": list(section)}
    return {"rope_parameters": rope, "max_position_embeddings": context}


def _vision2(hidden: int) -> dict[str, Any]:
    return {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "hidden_size": hidden}


def _vision2_5(hidden: int) -> dict[str, Any]:
    sizes = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": hidden}
    return {**sizes, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}


def _vision3(hidden: int, layers: int = 27, width: int = 1152, mlp: int = 4304) -> dict[str, Any]:
    sizes = {"depth": layers, "hidden_size": width, "intermediate_size": mlp, "num_heads": 16, "patch_size": 16}
    deep = [5, 11, 17] if layers == 24 else [8, 16, 24]
    return {**sizes, "out_hidden_size": hidden, "num_position_embeddings": 2304, "deepstack_visual_indexes": deep}


_QWEN = _mrope((16, 24, 24))
_QWEN3 = {**_mrope((24, 20, 20), 5e6, 262144), "head_dim": 128}
_QWEN3["rope_parameters"]["mrope_interleaved"] = True
_LLAMA = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "max_position_embeddings": 4096}
SHAPES = {
    "tiny": Shape(
        "qwen2_vl",
        500,
        _text(64, 128, 3, 4, 2, 512, **_mrope((2, 3, 3), 1e4, 2048)),
        {"depth": 1, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "hidden_size": 64},
    ),
    "qwen2-vl-2b": Shape(
        "qwen2_vl", QWEN2_TOKENS, _text(1536, 8960, 28, 12, 2, 151936, **_QWEN), _vision2(1536), tied=True
    ),
    "qwen2-vl-7b": Shape("qwen2_vl", QWEN2_TOKENS, _text(3584, 18944, 28, 28, 4, 152064, **_QWEN), _vision2(3584)),
    "qwen2.5-vl-3b": Shape(
        "qwen2_5_vl", QWEN2_5_TOKENS, _text(2048, 11008, 36, 16, 2, 151936, **_QWEN), _vision2_5(2048), tied=True
    ),
    "qwen2.5-vl-7b": Shape(
        "qwen2_5_vl", QWEN2_5_TOKENS, _text(3584, 18944, 28, 28, 4, 152064, **_QWEN), _vision2_5(3584)
    ),
    "qwen3-vl-2b": Shape(
        "qwen3_vl", QWEN3_TOKENS, _text(2048, 6144, 28, 16, 8, 151936, **_QWEN3), _vision3(2048, 24, 1024, 4096), True
    ),
    "qwen3-vl-4b": Shape(
        "qwen3_vl", QWEN3_TOKENS, _text(2560, 9728, 36, 32, 8, 151936, **_QWEN3), _vision3(2560, 24, 1024, 4096), True
    ),
    "qwen3-vl-8b": Shape("qwen3_vl", QWEN3_TOKENS, _text(4096, 12288, 36, 32, 8, 151936, **_QWEN3), _vision3(4096)),
    "qwen3-vl-32b": Shape("qwen3_vl", QWEN3_TOKENS, _text(5120, 25600, 64, 64, 8, 151936, **_QWEN3), _vision3(5120)),
    "vicuna-68m": Shape("llama", 32000, _text(768, 3072, 2, 12, 12, 32000, **_LLAMA)),
    "vicuna-160m": Shape("llama", 32000, _text(768, 3072, 12, 12, 12, 32000, **_LLAMA)),
    "vicuna-7b": Shape("llama", 32000, _text(4096, 11008, 32, 32, 32, 32000, **_LLAMA)),
    "vicuna-13b": Shape("llama", 32000, _text(5120, 13824, 40, 40, 40, 32000, **_LLAMA)),
}


def parameters(shape: Shape) -> int:
    """Return the number of weights of a shape, without making them."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in _model(shape, torch.float32).parameters())


def build(name: str, device: str, dtype: str) -> Vlm:
    """Return a preset with random weights, made on the device.

    It has no tokenizer: it is asked in token ids. Raises ModelFolderError where the weights do not fit.
    """
    shape = SHAPES[name]
    need, free = parameters(shape) * getattr(torch, dtype).itemsize, available_bytes(device)
    if need > free:
        raise ModelFolderError(
            f"preset {name} takes {gigabytes(need)} in {dtype}, {device} has {gigabytes(free)} free; choose a smaller "
            "preset or dtype"
        )
    with torch.device(device):
        model = _model(shape, getattr(torch, dtype)).eval().requires_grad_(False)
    frames = QwenFrames.of(patch_size=shape.vision.get("patch_size", 14)) if shape.vision else None
    return Vlm(
        family=family_of(shape.kind),
        model=model,
        processor=Processor(None, frames, ""),
        num_layers=shape.text["num_hidden_layers"],
        vocabulary=shape.tokens,
        eos=(2,),
        fingerprint="random",
        tokenizer_fingerprint="none",
        folder=Path(name),
    )


def _model(shape: Shape, dtype: torch.dtype) -> Any:
    model_class, last = family_of(shape.kind).model_class(shape.kind), shape.tokens - 1
    names = ("video_token_id", "image_token_id", "vision_end_token_id", "vision_start_token_id")
    ids = {name: last - place for place, name in enumerate(names)}
    seeing = {"text_config": shape.text, "vision_config": shape.vision, **ids}
    config = model_class.config_class(**(seeing if shape.vision else shape.text), tie_word_embeddings=shape.tied)
    return model_class._from_config(config, attn_implementation="sdpa", dtype=dtype)
