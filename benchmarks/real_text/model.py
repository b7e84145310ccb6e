"""A GGUF file -> a model folder as every other: safetensors, config, tokenizer, chat template.

And whether its tokenizer gives texts back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM as _AutoModelForCausalLM
from transformers import AutoTokenizer as _AutoTokenizer

from speculation.vlm.processing import Processor

AutoModelForCausalLM: Any = _AutoModelForCausalLM
AutoTokenizer: Any = _AutoTokenizer
SPLITS_DIGITS = "smollm"
"""What `tokenizer.ggml.pre` calls pre-tokenization into single digits before GPT-2's (llama.cpp, llama-vocab.cpp)."""


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model of a GGUF file as a model folder, weights in float32; `out` appears when it is whole.

    transformers rounds nothing: what was 4 bits in the file stays these values. Raises ValueError without the package
    gguf or for a file that transformers cannot read.
    """
    try:
        # transformers reads the package itself; without it its own error names neither package nor remedy.
        from gguf import GGUFReader
    except ImportError:
        raise ValueError(
            "package gguf is not installed, which reads the weights; docs/benchmarks.md has the command"
        ) from None
    field = GGUFReader(str(gguf)).fields.get("tokenizer.ggml.pre")
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, use_safetensors=True)
    if field is not None and field.contents() == SPLITS_DIGITS:
        split_digits(tokenizer)
    write(model, tokenizer, out)


def split_digits(tokenizer: Any) -> None:
    """Let a tokenizer take every digit by itself before all else, which transformers drops while it reads GGUF."""
    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def write(model: Any, tokenizer: Any, out: Path) -> None:
    """Write a loaded model and its tokenizer as a model folder. Raises ValueError without a chat template."""
    if not tokenizer.chat_template:
        raise ValueError("the file has no chat template; take weights of a model that was trained to chat")
    config = model.config
    if hasattr(config, "quantization_config"):
        # The weights are plain float32 by now; with this a loader would look for the file again.
        del config.quantization_config
    config.architectures = [type(model).__name__]
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    part = out.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    config.save_pretrained(str(part))
    model.generation_config.save_pretrained(str(part))
    Processor(tokenizer, None, tokenizer.chat_template).save(part)
    save_file(weights, str(part / "model.safetensors"), metadata={"format": "pt"})
    part.replace(out)


def check_tokenizer(tokenizer: Any, texts: Iterable[str]) -> dict[str, int]:
    """Return how many texts, characters and tokens were encoded and decoded again, every text to itself.

    Raises ValueError, with the first text that came back as another.
    """
    counts = {"texts": 0, "characters": 0, "tokens": 0}
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(ids)
        if back != text:
            raise ValueError(f"the tokenizer does not give a text back: {text!r} became {back!r}")
        counts["texts"] += 1
        counts["characters"] += len(text)
        counts["tokens"] += len(ids)
    return counts
