"""Models of `tests.models` as GGUF files in float32: the same weights, so that llama.cpp is compared with torch.

What llama.cpp's own converter does for these families; that is in none of its packages. Needs the package gguf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from speculation.vlm.families.qwen_vl import QwenFrames
from speculation.vlm.model import Vlm

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen2_vl": gguf.MODEL_ARCH.QWEN2VL,
}
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


def write_gguf(vlm: Vlm, path: Path, metadata: Mapping[str, str] | None = None) -> Path:
    """Write a model's decoder and tokenizer as one GGUF file; `metadata` replaces texts of its metadata."""
    kind = vlm.model.config.model_type
    config, architecture = vlm.text.config, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[kind]]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(vlm.num_layers)
    writer.add_context_length(vlm.context)
    writer.add_embedding_length(vlm.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(vlm.kv_heads)
    writer.add_key_length(vlm.head_dim)
    writer.add_value_length(vlm.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(vlm.head_dim)
    if kind == "qwen2_vl":
        writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    _add_tokenizer(writer, vlm, dict(metadata or {}))
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], vlm.num_layers)
    tensors = {f"model.{name}": weight for name, weight in vlm.text.state_dict().items()}
    if not vlm.model.config.tie_word_embeddings:
        tensors["lm_head.weight"] = vlm.model.lm_head.weight
    for name, weight in tensors.items():
        if architecture == "llama" and ".q_proj" in name:
            weight = _interleaved(weight, config.num_attention_heads)
        elif architecture == "llama" and ".k_proj" in name:
            weight = _interleaved(weight, vlm.kv_heads)
        _add(writer, names.get_name(name, (".weight", ".bias")), weight)
    return _written(writer, path)


def write_eyes(vlm: Vlm, path: Path) -> Path:
    """Write the vision tower of a Qwen2-VL as a GGUF file (mmproj)."""
    config = vlm.model.config.vision_config
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN2VL)
    writer.add_vision_projection_dim(vlm.hidden_size)
    writer.add_vision_image_size(560)
    writer.add_vision_patch_size(config.patch_size)
    writer.add_vision_embedding_length(config.embed_dim)
    writer.add_vision_feed_forward_length(int(config.embed_dim * config.mlp_ratio))
    writer.add_vision_block_count(config.depth)
    writer.add_vision_head_count(config.num_heads)
    assert isinstance(vlm.processor.frames, QwenFrames)
    images = vlm.processor.frames.images
    writer.add_vision_image_mean(list(images.image_mean))
    writer.add_vision_image_std(list(images.image_std))
    writer.add_vision_attention_layernorm_eps(1e-6)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(config.depth, 3))  # the merger counts its layers, too
    for name, weight in vlm.model.model.visual.state_dict().items():
        if name == "patch_embed.proj.weight":  # one convolution for each of the two frames that Qwen takes as one
            _add(writer, "v.patch_embd.weight", weight[:, :, 0])
            _add(writer, "v.patch_embd.weight.1", weight[:, :, 1])
        elif ".qkv." in name:
            for part, third in zip("qkv", weight.chunk(3), strict=True):
                _add(writer, names.get_name(f"visual.{name.replace('qkv', part)}", (".weight", ".bias")), third)
        else:
            _add(writer, names.get_name(f"visual.{name}", (".weight", ".bias")), weight)
    return _written(writer, path)


def _add_tokenizer(writer: Any, vlm: Vlm, changes: dict[str, str]) -> None:
    tokenizer, rows = vlm.tokenizer, vlm.text.embed_tokens.num_embeddings
    added = tokenizer.get_added_vocab()
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model(changes.pop("tokenizer.ggml.model", "gpt2"))
    writer.add_tokenizer_pre(changes.pop("tokenizer.ggml.pre", "qwen2"))
    writer.add_token_list([*words, *(f"[PAD{token}]" for token in range(len(words), rows))])
    kinds = [_CONTROL if word in added else _NORMAL for word in words]
    writer.add_token_types([*kinds, *[_UNUSED] * (rows - len(words))])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(vlm.eos[0])
    writer.add_add_bos_token(False)
    if template := changes.pop("tokenizer.chat_template", vlm.processor.template):
        writer.add_chat_template(template)
    assert not changes, f"unknown metadata {changes}"


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows in the order of llama's rotary embedding, which turns neighbours and not halves."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _add(writer: Any, name: str, weight: torch.Tensor) -> None:
    writer.add_tensor(name, np.ascontiguousarray(weight.detach().float().numpy()))


def _written(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
