"""Folders as InternVL3.5 and SmolVLM2 were published, with small random weights; see `tests.published`.

What is small is small for speed. As published are: keys of config.json and what they leave out (SmolVLM2 2.2B has no
heads), image processor's and processor's files, names and shards of weights, special tokens, chat templates.
Written from memory of huggingface.co/OpenGVLab/InternVL3-1B-hf, InternVL3_5-1B-HF, InternVL3_5-8B-HF, HuggingFaceTB/
SmolVLM2-256M-Video-Instruct, SmolVLM2-500M-Video-Instruct and SmolVLM2-2.2B-Instruct; InternVL's chat template and the
heads that 2.2B leaves out were seen in public copies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.models import tiny_tokenizer
from tests.published import random_weights, write_json, write_shards

INTERNVL_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "{{ '<IMG_CONTEXT>\n' }}{% elif content['type'] == 'video' %}{{ '<video>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}{{'<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
INTERNVL_TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>", "<quad>", "</quad>", "<ref>", "</ref>", "<box>", "</box>",
                   "<video>")  # fmt: skip
SMOLVLM_TOKENS = (
    "<fake_token_around_image>", "<image>", "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)), "<end_of_utterance>",
)  # fmt: skip
TOKENS_PER_TILE = 4


@dataclass(frozen=True)
class Layout:
    """Where one published checkpoint differs from another; numbers that are small here stand as they are here."""

    family: str
    decoder: str
    hidden: int
    layers: int
    tied: bool = False
    """Not as published: for fine-tuned models whose head is their embedding."""
    shards: int = 1
    older: bool = False
    """Whether weights have their names from before transformers 4.52."""
    heads: int | None = 2
    """None: config.json leaves them out."""
    side: int = 56
    patch: int = 14
    scale: int = 2


LAYOUTS = {
    "InternVL3-1B-hf": Layout("internvl", "qwen2", 256, 2, tied=True, older=True),
    "InternVL3_5-1B-HF": Layout("internvl", "qwen3", 256, 2),
    "InternVL3_5-8B-HF": Layout("internvl", "qwen3", 384, 3, shards=4, heads=3),
    "SmolVLM2-256M-Video-Instruct": Layout("smolvlm", "llama", 64, 2, side=128, patch=16, scale=4),
    "SmolVLM2-500M-Video-Instruct": Layout("smolvlm", "llama", 96, 2, heads=3, side=128, patch=16, scale=4),
    "SmolVLM2-2.2B-Instruct": Layout("smolvlm", "llama", 64, 3, heads=None, shards=2, side=84, patch=14, scale=3),
}


def published_tiles(
    folder: Path, name: str, *, newer: bool = False, seed: int = 0, across: int = 4, text: dict[str, Any] | None = None
) -> Path:
    """Write a checkpoint in the layout of `name` into a folder and return it.

    `newer`: with processor_config.json as transformers 5 writes it, in place of the files of 4; `across`: tiles along
    the longest side of SmolVLM's frames; `text`: changes of the decoder's config.
    """
    layout = LAYOUTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    internvl = layout.family == "internvl"
    tokenizer.add_special_tokens({
        "additional_special_tokens": list(INTERNVL_TOKENS if internvl else SMOLVLM_TOKENS),
    })  # fmt: skip
    if not internvl:
        tokenizer.eos_token = "<end_of_utterance>"
    tokenizer.chat_template = None
    tokenizer.save_pretrained(str(folder))
    if internvl:
        _name_the_image_tokens(folder)
    vocabulary = tokenizer.get_vocab()
    processor = _internvl_processor(layout) if internvl else _smolvlm_processor(layout, across)
    tokens = {"image_seq_length" if internvl else "image_seq_len": TOKENS_PER_TILE}
    tokens |= {"processor_class": processor["processor_class"]}
    template = INTERNVL_TEMPLATE if internvl else SMOLVLM_TEMPLATE
    if newer:
        write_json(folder / "processor_config.json", {"image_processor": processor, **tokens})
    else:
        write_json(folder / "preprocessor_config.json", processor)
        write_json(folder / "processor_config.json", tokens)
    if newer or internvl:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        write_json(folder / "chat_template.json", {"chat_template": template})
    write_json(folder / "generation_config.json", {
        "bos_token_id": vocabulary["<|im_start|>"], "eos_token_id": vocabulary[tokenizer.eos_token],
        "pad_token_id": vocabulary["<|im_end|>"], "transformers_version": "4.55.0",
    })  # fmt: skip
    config = _internvl_config if internvl else _smolvlm_config
    described = config(layout, vocabulary, len(tokenizer) + (151 if internvl else 0))
    described["text_config"] |= text or {}
    write_json(folder / "config.json", described)
    renamed = _as_before if layout.older else str
    weights = random_weights(folder, layout.family, layout.tied, len(tokenizer), seed, renamed)
    if layout.shards == 1:
        save_file(weights, str(folder / "model.safetensors"), {"format": "pt"})
    else:
        write_shards(folder, weights, layout.shards)
    return folder


def _internvl_config(layout: Layout, vocabulary: dict[str, int], rows: int) -> dict[str, Any]:
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": vocabulary["<|im_start|>"],
        "eos_token_id": vocabulary["<|im_end|>"], "head_dim": 128, "hidden_act": "silu", "hidden_size": layout.hidden,
        "initializer_range": 0.02, "intermediate_size": 2 * layout.hidden, "max_position_embeddings": 40960,
        "max_window_layers": layout.layers, "model_type": layout.decoder, "num_attention_heads": layout.heads,
        "num_hidden_layers": layout.layers, "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "torch_dtype": "bfloat16", "use_cache": True,
        "use_sliding_window": False, "vocab_size": rows, "tie_word_embeddings": layout.tied,
    }  # fmt: skip
    vision = {
        "attention_bias": True, "attention_dropout": 0.0, "dropout": 0.0, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 32, "image_size": [layout.side] * 2, "initializer_factor": 0.1,
        "initializer_range": 1e-10, "intermediate_size": 64, "layer_norm_eps": 1e-06, "layer_scale_init_value": 0.1,
        "model_type": "internvl_vision", "norm_type": "layer_norm", "num_attention_heads": 2, "num_channels": 3,
        "num_hidden_layers": 2, "patch_size": [layout.patch] * 2, "projection_dropout": 0.0, "torch_dtype": "bfloat16",
        "use_absolute_position_embeddings": True, "use_mask_token": False, "use_mean_pooling": True,
        "use_qk_norm": False,
    }  # fmt: skip
    return {
        "architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 1 / layout.scale,
        "image_seq_length": TOKENS_PER_TILE, "image_token_id": vocabulary["<IMG_CONTEXT>"], "model_type": "internvl",
        "projector_hidden_act": "gelu", "text_config": text, "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0", "vision_config": vision, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default", "tie_word_embeddings": layout.tied,
    }  # fmt: skip


def _smolvlm_config(layout: Layout, vocabulary: dict[str, int], rows: int) -> dict[str, Any]:
    heads = {} if layout.heads is None else {"num_attention_heads": layout.heads, "num_key_value_heads": 1}
    text = {
        "_flash_attn_2_enabled": True, "_name_or_path": "None", "architectures": ["VLlama3ForCausalLM"],
        "bos_token_id": 1, "eos_token_id": 2, "head_dim": 32 if layout.heads else 8, "hidden_size": layout.hidden,
        "intermediate_size": 2 * layout.hidden, "is_llama_config": True, "max_position_embeddings": 8192,
        "model_type": "llama", "neftune_noise_alpha": 0.0, "num_hidden_layers": layout.layers, **heads,
        "pad_token_id": 2, "perceiver_config": {"_attn_implementation_autoset": False, "model_type": "vllama3"},
        "pixel_shuffle_factor": layout.scale, "qk_layer_norms": False, "rms_norm_eps": 1e-05,
        "rope_interleaved": False, "rope_theta": 100000, "torch_dtype": "bfloat16", "use_resampler": False,
        "vocab_size": rows,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "image_size": layout.side, "intermediate_size": 64,
        "max_image_size": {"longest_edge": layout.side}, "model_type": "smolvlm_vision", "num_attention_heads": 2,
        "num_hidden_layers": 2, "patch_size": layout.patch, "size": {"longest_edge": 4 * layout.side},
        "tie_word_embeddings": False, "use_base_siglip": False,
    }  # fmt: skip
    return {
        "architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": vocabulary["<image>"],
        "model_type": "smolvlm", "scale_factor": layout.scale, "text_config": text, "tie_word_embeddings": False,
        "torch_dtype": "float32", "transformers_version": "4.47.1", "use_cache": False, "use_reentrant_checkpoints":
        False, "vision_config": vision, "vocab_size": rows, "pad_token_id": vocabulary["<|im_end|>"],
    }  # fmt: skip


def _internvl_processor(layout: Layout) -> dict[str, Any]:
    return {
        "crop_size": None, "crop_to_patches": False, "data_format": "channels_first", "default_to_square": True,
        "device": None, "do_center_crop": None, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True,
        "do_resize": True, "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "GotOcr2ImageProcessorFast",
        "image_std": [0.229, 0.224, 0.225], "input_data_format": None, "max_patches": 12, "min_patches": 1,
        "processor_class": "InternVLProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
        "return_tensors": None, "size": {"height": layout.side, "width": layout.side},
    }  # fmt: skip


def _smolvlm_processor(layout: Layout, across: int) -> dict[str, Any]:
    return {
        "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True,
        "do_resize": True, "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "SmolVLMImageProcessor",
        "image_std": [0.5, 0.5, 0.5], "max_image_size": {"longest_edge": layout.side},
        "processor_class": "SmolVLMProcessor", "resample": 1, "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": across * layout.side},
    }  # fmt: skip


def _name_the_image_tokens(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    named = {"context_image_token": "<IMG_CONTEXT>", "end_image_token": "</img>", "start_image_token": "<img>",
             "video_token": "<video>"}  # fmt: skip
    write_json(path, settings | named | {"extra_special_tokens": named, "processor_class": "InternVLProcessor"})


def _as_before(name: str) -> str:
    """Return the name that a weight had before transformers 4.52."""
    old = name.replace("model.language_model.", "language_model.model.").removeprefix("model.")
    return "language_model.lm_head.weight" if old == "lm_head.weight" else old
