"""Folders as Qwen published its checkpoints, with small random weights: file names, keys of their configs, layout.

What is small is small for speed: layers, widths and vocabulary. What a loader has to get right is as published: a flat
config.json with Qwen's own keys (or, as later tools write it, one with a text_config), mrope_section and the width of a
head that it belongs to, tied and untied heads, embeddings that are padded differently, the vision tower of 2.5 with its
windows, shards with an index and names of weights from before transformers 4.52, vocab.json and merges.txt beside
tokenizer.json, the template in chat_template.json, and the sampling of generation_config.json.
Taken from config.json, generation_config.json and preprocessor_config.json of huggingface.co/Qwen/Qwen2-VL-2B-Instruct,
Qwen2-VL-7B-Instruct, Qwen2.5-VL-3B-Instruct and Qwen2.5-VL-7B-Instruct and of their copies there; those of Qwen3-VL, 2B
to 32B and 30B-A3B, are written from memory of the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from speculation.vlm.families import family_of
from speculation.vlm.processing import SPECIAL_TOKENS
from tests.models import randomise, tiny_tokenizer

HEAD_DIM = 128
"""Of every published size: mrope_section 16, 24, 24 is half of it."""
QWEN25_TOKENS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
"""What Qwen2.5's tokenizer has beyond Qwen2's: 151665 tokens, not 151657."""
QWEN3_TOKENS = ("<tool_response>", "</tool_response>", "<think>", "</think>")
"""What Qwen3's has beyond Qwen2.5's: 151669 tokens."""
FILES = {
    "chat_template.json", "config.json", "generation_config.json", "merges.txt", "model.safetensors.index.json",
    "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
}  # fmt: skip
"""Beside the shards."""
TEMPLATE = (
    "{% set pictures = namespace(count=0) %}{% set films = namespace(count=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}"
    "<|im_end|>\n{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}"
    "{% set pictures.count = pictures.count + 1 %}{% if add_vision_id %}Picture {{ pictures.count }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'video' or 'video' in part %}"
    "{% set films.count = films.count + 1 %}{% if add_vision_id %}Video {{ films.count }}: {% endif %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Renders every chat as Qwen's own: with its system prompt, which our models' template leaves out."""


THIRD_TEMPLATE = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}<|im_start|>user\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part or 'image_url' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' or 'video' in part %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}<|im_start|>assistant\n{{ message.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen3-VL's, without tools: it has no system prompt of its own."""


@dataclass(frozen=True)
class Layout:
    """Where one published size differs from another; numbers that are small here stand as they are here."""

    family: str
    tied: bool
    shards: int
    hidden: int
    layers: int
    padding: int
    """Rows that the embedding has beyond the tokenizer's length."""
    sampling: dict[str, Any]

    @property
    def is_third(self) -> bool:
        """Whether it is a Qwen3-VL, whose files differ from those of the two before it."""
        return self.family.startswith("qwen3")


_THIRD = {"top_p": 0.8, "top_k": 20, "temperature": 0.7, "repetition_penalty": 1.0}
LAYOUTS = {
    "Qwen2-VL-2B-Instruct": Layout("qwen2_vl", True, 2, 256, 2, 279, {"temperature": 0.01, "top_p": 0.001, "top_k": 1}),
    "Qwen2-VL-7B-Instruct": Layout(
        "qwen2_vl", False, 5, 384, 3, 407, {"temperature": 0.01, "top_p": 0.001, "top_k": 1}
    ),
    "Qwen2.5-VL-3B-Instruct": Layout(
        "qwen2_5_vl", True, 2, 256, 2, 271, {"repetition_penalty": 1.05, "temperature": 0.000001}
    ),
    "Qwen2.5-VL-7B-Instruct": Layout(
        "qwen2_5_vl", False, 5, 384, 3, 399, {"repetition_penalty": 1.05, "temperature": 0.000001}
    ),
    "Qwen3-VL-2B-Instruct": Layout("qwen3_vl", True, 1, 256, 2, 267, _THIRD),
    "Qwen3-VL-4B-Instruct": Layout("qwen3_vl", True, 2, 256, 3, 267, _THIRD),
    "Qwen3-VL-8B-Instruct": Layout("qwen3_vl", False, 4, 384, 3, 267, _THIRD),
    "Qwen3-VL-32B-Instruct": Layout("qwen3_vl", False, 14, 384, 4, 267, _THIRD),
    "Qwen3-VL-30B-A3B-Instruct": Layout("qwen3_vl_moe", False, 13, 256, 4, 267, _THIRD),
}


def published(folder: Path, name: str, *, nested: bool = False, seed: int = 0) -> Path:
    """Write a checkpoint in the layout of `name` into a new folder and return it.

    `nested`: config.json has a text_config, as transformers from 4.52 on writes it when a checkpoint was fine-tuned.
    """
    layout = LAYOUTS[name]
    folder.mkdir(parents=True)
    tokenizer = tiny_tokenizer()
    if layout.family != "qwen2_vl":
        tokenizer.add_tokens(list(QWEN25_TOKENS))
    if layout.is_third:
        tokenizer.add_tokens(list(QWEN3_TOKENS))
    vocabulary = tokenizer.get_vocab()
    ids = {token: vocabulary[token] for token in SPECIAL_TOKENS}
    template = THIRD_TEMPLATE if layout.is_third else TEMPLATE
    _write_tokenizer(folder, tokenizer, template)
    write_json(folder / "chat_template.json", {"chat_template": template})
    write_json(folder / "preprocessor_config.json", _images(layout))
    if layout.is_third:
        write_json(folder / "video_preprocessor_config.json", {
            **_images(layout), "size": {"longest_edge": 25165824, "shortest_edge": 4096},
            "video_processor_type": "Qwen3VLVideoProcessor",
        })  # fmt: skip
    write_json(folder / "generation_config.json", {
        "bos_token_id": ids["<|endoftext|>"], "pad_token_id": ids["<|endoftext|>"], "do_sample": True,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], **layout.sampling, "transformers_version": "4.37.0",
    })  # fmt: skip
    write_json(folder / "config.json", _config(layout, ids, len(tokenizer) + layout.padding, nested))
    renamed = str if layout.is_third else _as_published
    weights = random_weights(folder, layout.family, layout.tied, len(tokenizer), seed, renamed)
    write_shards(folder, weights, layout.shards)
    return folder


def _images(layout: Layout) -> dict[str, Any]:
    if layout.is_third:
        return {
            "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2,
            "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
        }  # fmt: skip
    return {
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor" if layout.family == "qwen2_vl" else "Qwen2_5_VLProcessor",
    }  # fmt: skip


def _third_config(layout: Layout, ids: dict[str, int], rows: int) -> dict[str, Any]:
    text: dict[str, Any] = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": ids["<|endoftext|>"], "dtype": "bfloat16",
        "eos_token_id": ids["<|im_end|>"], "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": layout.hidden,
        "initializer_range": 0.02, "intermediate_size": 2 * layout.hidden, "max_position_embeddings": 262144,
        "model_type": f"{layout.family}_text", "num_attention_heads": layout.hidden // HEAD_DIM,
        "num_hidden_layers": layout.layers, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "tie_word_embeddings": layout.tied, "use_cache": True, "vocab_size": rows,
    }  # fmt: skip
    if layout.family == "qwen3_vl_moe":
        text |= {
            "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 64, "norm_topk_prob": True,
            "num_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001,
        }  # fmt: skip
    vision = {
        "deepstack_visual_indexes": [0, 2], "depth": 4, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 64, "model_type": layout.family,
        "num_heads": 2, "num_position_embeddings": 144, "out_hidden_size": layout.hidden, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    experts = "Moe" if layout.family == "qwen3_vl_moe" else ""
    return {
        "architectures": [f"Qwen3VL{experts}ForConditionalGeneration"], "image_token_id": ids["<|image_pad|>"],
        "model_type": layout.family, "text_config": text, "tie_word_embeddings": layout.tied,
        "transformers_version": "4.57.0.dev0", "video_token_id": ids["<|video_pad|>"], "vision_config": vision,
        "vision_end_token_id": ids["<|vision_end|>"], "vision_start_token_id": ids["<|vision_start|>"],
    }  # fmt: skip


def _config(layout: Layout, ids: dict[str, int], rows: int, nested: bool) -> dict[str, Any]:
    if layout.is_third:
        return _third_config(layout, ids, rows)
    heads = layout.hidden // HEAD_DIM
    text: dict[str, Any] = {
        "attention_dropout": 0.0, "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"],
        "hidden_act": "silu", "hidden_size": layout.hidden, "initializer_range": 0.02,
        "intermediate_size": 2 * layout.hidden, "max_position_embeddings": 32768, "max_window_layers": layout.layers,
        "num_attention_heads": heads, "num_hidden_layers": layout.layers, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "use_cache": True,
        "use_sliding_window": False, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vocab_size": rows,
    }  # fmt: skip
    if layout.family == "qwen2_vl":
        vision: dict[str, Any] = {
            "depth": 2, "embed_dim": 32, "mlp_ratio": 4, "num_heads": 2, "in_chans": 3, "hidden_size": layout.hidden,
            "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
        }  # fmt: skip
        architecture = "Qwen2VLForConditionalGeneration"
    else:
        vision = {
            "depth": 4, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 52, "num_heads": 2, "in_chans": 3,
            "out_hidden_size": layout.hidden, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
            "window_size": 112, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2, "temporal_patch_size": 2,
        }  # fmt: skip
        architecture = "Qwen2_5_VLForConditionalGeneration"
    whole = {
        "architectures": [architecture], "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"], "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"], "model_type": layout.family,
        "tie_word_embeddings": layout.tied, "torch_dtype": "bfloat16", "transformers_version": "4.41.2",
        "vision_config": vision,
    }  # fmt: skip
    if not nested:
        return whole | text
    inner = text | {
        "model_type": f"{layout.family}_text", "tie_word_embeddings": layout.tied, "torch_dtype": "bfloat16",
        "layer_types": ["full_attention"] * layout.layers, "sliding_window": None,
        "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
    }  # fmt: skip
    named = vision | {"model_type": layout.family}
    return whole | {"text_config": inner, "vision_config": named, "transformers_version": "4.53.0"}


def _write_tokenizer(folder: Path, tokenizer: Any, template: str) -> None:
    tokenizer.save_pretrained(str(folder))
    whole = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = whole["model"]
    write_json(folder / "vocab.json", model["vocab"])
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    added = {each["id"]: {name: each[name] for name in each if name != "id"} for each in whole["added_tokens"]}
    write_json(folder / "tokenizer_config.json", {
        "add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None, "chat_template": template, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
        "errors": "replace", "model_max_length": 32768, "pad_token": "<|endoftext|>", "padding_side": "left",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    })  # fmt: skip
    for path in folder.iterdir():
        if path.name not in FILES:
            path.unlink()


def _as_published(name: str) -> str:
    return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")


def random_weights(
    folder: Path, family: str, tied: bool, tokens: int, seed: int, renamed: Callable[[str], str] = str
) -> dict[str, torch.Tensor]:
    """Return random weights of the model that a folder's config.json describes, by the names that they have there."""
    build: Any = family_of(family).model_class(family)._from_config
    model = build(AutoConfig.from_pretrained(str(folder)), attn_implementation="sdpa", dtype=torch.float32)
    randomise(model, seed, tokens)
    weights = model.to(torch.bfloat16).state_dict()
    if tied:
        del weights["lm_head.weight"]
    return {renamed(name): weight.contiguous() for name, weight in weights.items()}


def write_shards(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """Write weights into so many files, and the index that says which holds what."""
    names = sorted(weights)
    places = {
        name: f"model-{1 + number * shards // len(names):05}-of-{shards:05}.safetensors"
        for number, name in enumerate(names)
    }
    for file in sorted(set(places.values())):
        save_file({name: weights[name] for name in names if places[name] == file}, str(folder / file), {"format": "pt"})
    size = sum(weight.nbytes for weight in weights.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": places})


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Return all weights of a folder by the names that they are stored under."""
    return {name: weight for path in folder.glob("*.safetensors") for name, weight in load_file(str(path)).items()}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file as the checkpoints have them."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
