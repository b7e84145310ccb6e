"""How much memory a model takes, from its headers and config, and how much there is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from speculation.vlm.folder import ModelFolderError, StoredTensor
from speculation.vlm.settings import ModelSettings, Quantisation

CGROUP = Path("/sys/fs/cgroup")
DECODER_LAYER = re.compile(r"(?:^|\.)(?:language_|text_)?model\.layers\.(\d+)\.")
"""Weights of decoder layer n, in every family's names; vision towers have layers, too."""


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the decoder's part of a config.json, with transformers' defaults; older checkpoints have it at the top.

    SmolVLM2 2.2B, for one, leaves out the heads. Raises ModelFolderError for values that cannot be.
    """
    inner = config.get("text_config", {})
    try:
        defaults = AutoConfig.for_model(**deepcopy(inner)).to_dict() if "model_type" in inner else {}
    except (StrictDataclassError, ValueError) as error:
        raise ModelFolderError(f"text_config in config.json: {' '.join(str(error).split())}; fetch it again") from None
    return dict(defaults | config | inner)


def head_width(text: dict[str, Any]) -> int:
    """Return the width of one attention head of a decoder's config."""
    return int(text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"])


def kv_bytes(config: dict[str, Any], dtype: str) -> int:
    """Return the bytes that one token's keys and values take, all layers together."""
    text = text_config(config)
    heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
    return 2 * int(text["num_hidden_layers"]) * heads * head_width(text) * int(getattr(torch, dtype).itemsize)


def weight_bytes(tensors: Iterable[StoredTensor], dtype: str, quantisation: Quantisation = Quantisation.NONE) -> int:
    """Return the bytes that stored tensors take once loaded in `dtype` and rounded; stored integers stay."""
    total = 0
    for tensor in tensors:
        if not tensor.dtype.startswith(("F", "BF")) or tensor.dtype.startswith("F8"):
            total += tensor.nbytes
        elif quantisation is not Quantisation.NONE and _is_rounded(tensor):
            total += _rounded_bytes(tensor, quantisation)
        else:
            total += tensor.count * int(getattr(torch, dtype).itemsize)
    return total


def available_bytes(device: str) -> int:
    """Return the bytes that are free on a device: `cpu`, within this process's control group, or a GPU of torch's."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    free = _system_free()
    try:
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, limit - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        pass
    return max(free, 0)


def check_memory(folder: Path, tensors: Iterable[StoredTensor], settings: ModelSettings) -> None:
    """Raise ModelFolderError where the weights alone do not fit the free memory of the device."""
    need = weight_bytes(tensors, settings.dtype, settings.rounding)
    free = available_bytes(settings.device)
    if need > free:
        raise ModelFolderError(
            f"model {folder}: its weights take {gigabytes(need)} in {settings.dtype}, {settings.device} has "
            f"{gigabytes(free)} free; choose a smaller dtype, quantise it, or take a smaller model"
        )


def loaded_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a loaded model's weights and buffers, with the scales of quantised ones."""
    return sum(_bytes_of(each) for each in [*model.parameters(), *model.buffers()])


def gigabytes(count: float) -> str:
    """Return a number of bytes as people read it: '15.2 GB', '46 MB'."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.1f} MB" if count < 1e7 else f"{count / 1e6:.0f} MB"


def _system_free() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # no Linux: what was never used is all that is known
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _is_rounded(tensor: StoredTensor) -> bool:
    return DECODER_LAYER.search(tensor.name) is not None and len(tensor.shape) == 2


def _rounded_bytes(tensor: StoredTensor, quantisation: Quantisation) -> int:
    # float32 scales: one for each block of 64 weights in NF4, else one for each row.
    if quantisation is Quantisation.NF4:
        return tensor.count // 2 + tensor.count // 64 * 4
    return tensor.count + tensor.shape[0] * 4


def _bytes_of(tensor: Any) -> int:
    if hasattr(tensor, "__tensor_flatten__"):
        # torchao's weights call themselves float; what they are made of is smaller.
        return sum(_bytes_of(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    state = getattr(tensor, "quant_state", None)
    scales = getattr(state, "absmax", None) if state is not None else getattr(tensor, "SCB", None)
    return int(tensor.nbytes) + (int(scales.nbytes) if scales is not None else 0)
