"""A GGUF file -> a model folder as every other: safetensors, config, tokenizer, chat template.

And whether its tokenizer gives texts back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM as _AutoModelForCausalLM

from speculation.vlm.gguf_file import read_metadata
from speculation.vlm.gguf_tokenizer import gguf_processor
from speculation.vlm.processing import Processor

AutoModelForCausalLM: Any = _AutoModelForCausalLM


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model of a GGUF file as a model folder, weights in float32; `out` appears when it is whole.

    transformers rounds nothing: what was 4 bits in the file stays these values. Raises ValueError without the package
    gguf, for a file that transformers cannot read, and for one without a tokenizer that is known or a chat template.
    """
    if find_spec("gguf") is None:
        # transformers reads with it; its own error names neither package nor remedy.
        raise ValueError("package gguf is not installed, which reads the weights; docs/benchmarks.md has the command")
    processor = gguf_processor(gguf, read_metadata(gguf))
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, use_safetensors=True)
    write(model, processor, out)


def write(model: Any, processor: Processor, out: Path) -> None:
    """Write a loaded model, its tokenizer and its chat template as a model folder."""
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
    processor.save(part)
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
