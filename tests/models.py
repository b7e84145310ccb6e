"""Tiny random Qwen2-VL models on disk: every test's target and draft, built in a second."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    AddedToken,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from adapters_training.shapes import train_tokenizer
from speculation.language.prompts import ACTIONS, Vocabulary, format_answer
from speculation.language.thinking import CLOSES, OPENS
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Logits, draft_chunk, forward, prefill
from speculation.vlm.inputs import Inputs, library_arguments
from speculation.vlm.model import Vlm
from speculation.vlm.processing import CHAT_TEMPLATE, SPECIAL_TOKENS, Processor, build_processor

COLOURS = ("silver", "red", "blue")
CLASSES = ("bottle", "chair", "ball")
IMAGE_SIZE = 56
HEAD_DIM = 16
FAMILIES: dict[str, Any] = {
    "qwen2_vl": (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        lambda hidden: {"embed_dim": 32, "hidden_size": hidden, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        lambda hidden: {
            "hidden_size": 32,
            "out_hidden_size": hidden,
            "intermediate_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [0],
        },
    ),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration, lambda hidden: deep_vision(hidden)),
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration, lambda hidden: deep_vision(hidden)),
}
TILED = {"internvl": "InternVL3_5-8B-HF", "smolvlm": "SmolVLM2-256M-Video-Instruct"}
"""Families that cut frames into tiles, and the published layout that their tiny models have."""
TEXT_PARTS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {"head_dim": HEAD_DIM},
    "qwen3_vl_moe": {
        "head_dim": HEAD_DIM,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
}
"""What the decoders of families have beside what all have."""
TEXT_FAMILIES: dict[str, Any] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None, "head_dim": 2 * HEAD_DIM}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 2 * HEAD_DIM}),
}


def deep_vision(hidden: int) -> dict[str, Any]:
    """Return the settings of a vision tower that is seen by two decoder layers (DeepStack) and the embedding."""
    return {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "out_hidden_size": hidden,
        "patch_size": 14,
        "num_position_embeddings": 144,
        "deepstack_visual_indexes": [0, 1],
    }


def decoder(tokenizer: Qwen2Tokenizer, hidden: int, layers: int, padding: int = 64) -> dict[str, Any]:
    """Return the settings of a decoder whose embedding is padded to a multiple of so many rows."""
    heads, end = hidden // HEAD_DIM, tokenizer.convert_tokens_to_ids("<|im_end|>")
    return {
        "vocab_size": -(-len(tokenizer) // padding) * padding,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end,
    }


THINKING_TEMPLATE = CHAT_TEMPLATE.replace("assistant\n{%", "assistant\n<think>\n{%")
"""A chat that begins to think, as Qwen3-VL-Thinking's does."""
HYBRID_TEMPLATE = CHAT_TEMPLATE.replace(
    "assistant\n{%", "assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{%"
)
"""A chat that leaves it to the model, as Qwen3's does."""


def tiny_tokenizer(vocabulary: int = 400, thinks: bool = False, special: bool = False) -> Qwen2Tokenizer:
    """Return a byte-level BPE tokenizer with Qwen2-VL's special tokens, of at most `vocabulary` tokens.

    `thinks`: the marks of thinking come behind them, which the tokenizer calls `special` or not.
    """
    texts = [
        format_answer(f"I see the {colour} {thing} ahead, on the left.", action)
        for colour in COLOURS
        for thing in CLASSES
        for action in ACTIONS
    ]
    tokenizer: Qwen2Tokenizer = train_tokenizer(texts, vocabulary)
    if thinks:
        tokenizer.add_tokens([AddedToken(mark, normalized=False, special=special) for mark in (OPENS, CLOSES)])
    return tokenizer


def tiny_model(
    folder: Path,
    *,
    layers: int = 4,
    hidden: int = 64,
    seed: int = 0,
    vocabulary: int = 400,
    image_size: int = IMAGE_SIZE,
    dtype: torch.dtype = torch.bfloat16,
    tied: bool = False,
    family: str = "qwen2_vl",
    padding: int = 64,
    template: str = CHAT_TEMPLATE,
    special: bool = False,
) -> Path:
    """Write a random model of a family, Qwen2-VL's or another, its tokenizer and processor into `folder`; return it.

    Weights are scaled up so that answers depend on positions, image and history. The same `vocabulary` gives the same
    tokenizer, so any two models make a pair; the same `seed` and `hidden` with fewer layers gives the same model cut
    short, a draft that is right now and then. `objects.json` knows COLOURS and CLASSES. The embedding is padded to a
    multiple of `padding` rows. With a `template` that knows of thinking its marks are tokens, likelier than others and
    `special` or not. Of a family in TILED, `layers` and `seed` alone are as asked for.
    """
    if family in TILED:
        from tests.published_tiles import published_tiles  # late, as it takes this module

        return published_tiles(folder, TILED[family], seed=seed, across=2, text={"num_hidden_layers": layers})
    thinks = OPENS in template
    tokenizer = tiny_tokenizer(vocabulary, thinks, special)
    ids: dict[str, Any] = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    config_class, model_class, vision = FAMILIES[family]
    config = config_class(
        text_config=decoder(tokenizer, hidden, layers, padding)
        | {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 3, 3],  # half a head's width
            },
            "pad_token_id": ids["<|endoftext|>"],
        }
        | TEXT_PARTS.get(family, {}),
        vision_config={"depth": 1, "num_heads": 2} | vision(hidden),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tied,
    )
    build: Any = model_class._from_config
    model = build(config, attn_implementation="sdpa", dtype=torch.float32)
    randomise(model, seed, len(tokenizer))
    if thinks:
        with torch.no_grad():
            model.lm_head.weight[tokenizer.convert_tokens_to_ids([OPENS, CLOSES])] *= 2.0
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.to(dtype).save_pretrained(str(folder))
    build_processor(tokenizer, image_size, template).save(folder)
    Vocabulary(COLOURS, CLASSES).save(folder)
    return folder


def tiny_text_model(
    folder: Path,
    *,
    family: str = "llama",
    layers: int = 3,
    hidden: int = 64,
    seed: int = 0,
    vocabulary: int = 400,
    tied: bool = False,
    template: str = CHAT_TEMPLATE,
    **changes: Any,
) -> Path:
    """Write a random language model without a vision tower into `folder`, with its tokenizer, and return it.

    Its weights are made as `tiny_model`'s; `changes` are values of its config; an empty `template` is left out.
    """
    tokenizer = tiny_tokenizer(vocabulary)
    config_class, model_class, own = TEXT_FAMILIES[family]
    config = config_class(**decoder(tokenizer, hidden, layers) | {"tie_word_embeddings": tied} | own | changes)
    build: Any = model_class._from_config
    model = build(config, attn_implementation="sdpa", dtype=torch.float32)
    randomise(model, seed, len(tokenizer))
    model.to(torch.bfloat16).save_pretrained(str(folder))
    Processor(tokenizer, None, template).save(folder)
    if not template:
        (folder / "chat_template.jinja").unlink()
    return folder


def randomise(model: Any, seed: int, vocabulary: int) -> None:
    """Fill a model with random weights, see `tiny_model`; of the embedding's rows `vocabulary` stand for a token."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim < 2:
                continue
            # Seeded by name, so that a model with fewer layers is the same model cut short.
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
            fan_in = weight[0].numel()
            scale = 1.0 if "embed_tokens" in name else fan_in**-0.5
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
        # Checkpoints learn never to say the padding of their embedding; a random one has to be told.
        if not model.config.tie_word_embeddings:
            model.lm_head.weight[vocabulary:] = 0


def frame(seed: int, size: int = IMAGE_SIZE) -> npt.NDArray[np.uint8]:
    """Return a random RGB frame [size, size, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def scratch_inputs(vlm: Vlm, inputs: Inputs, tokens: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """Return the arguments of transformers' own forward over a prompt and `tokens`; it finds positions by itself."""
    return library_arguments(vlm, inputs, tokens)


def tree_logits(vlm: Vlm, inputs: Inputs, tokens: Sequence[int], parents: Sequence[int] = ()) -> Logits:
    """Return the cached forward's logits behind a prompt and each node of a tree, or of a chain without `parents`."""
    cache = KVCache(vlm, 1, 512)
    root = prefill(vlm, cache, 0, inputs)
    chain = range(-1, len(tokens) - 1)
    return forward(vlm, cache, [draft_chunk(cache, 0, root, tokens, parents or chain)])[0]


def check_tree(
    vlm: Vlm, inputs: Inputs, tree: tuple[Sequence[int], Sequence[int]], logits: Logits, near: float = 1e-9
) -> None:
    """Compare the logits of a tree, its root's first, with one from-scratch forward per node."""
    tokens, parents = tree
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent + 1], token])
    for path, row in zip(paths, logits, strict=True):
        np.testing.assert_allclose(row, scratch_logits(vlm, inputs, path)[-1], rtol=0, atol=near)


@torch.no_grad()
def scratch_logits(vlm: Vlm, inputs: Inputs, tokens: Sequence[int] = ()) -> npt.NDArray[np.floating]:
    """Return transformers' logits [len(tokens) + 1, vocabulary] after the prompt's last token and each of `tokens`.

    The slow exact twin of every cached forward: nothing is kept from one call to the next.
    """
    vlm.family.forget(vlm.model)
    logits = vlm.model(**scratch_inputs(vlm, inputs, tokens), use_cache=False).logits
    result: npt.NDArray[np.floating] = logits[0, len(inputs.ids) - 1 :, : vlm.vocabulary].numpy()
    return result
