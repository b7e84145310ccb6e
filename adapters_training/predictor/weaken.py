"""A draft made worse on purpose, reproducibly: what a predictor is worth shows where the draft is often wrong."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from speculation.predictor import CONFIG_FILE, WEIGHTS_FILE

_WEIGHTS = "model.safetensors"


def weaken(draft: Path, out: Path, noise: float, seed: int = 0) -> None:
    """Copy a model folder; every matrix of the decoder gets Gaussian noise of `noise` times its deviation.

    The vision tower is left alone, and so are norms and embeddings: the draft still reads, but thinks worse. The noise
    of a matrix depends on (seed, its name) only. Raises ValueError for a folder whose weights are not in one file or
    that would be overwritten.
    """
    source = draft / _WEIGHTS
    if not source.is_file():
        raise ValueError(f"{draft} has no {_WEIGHTS}; give a folder with its weights in one file")
    if noise <= 0.0:
        raise ValueError(f"noise is {noise}; give more than 0, e.g. 1")
    if out.resolve() == draft.resolve() or out.exists():
        raise ValueError(f"{out} is there already; give a new folder")
    tensors = load_file(str(source))
    changed = {name: _noisy(name, tensor, noise, seed) for name, tensor in tensors.items()}
    if all(changed[name] is tensor for name, tensor in tensors.items()):
        raise ValueError(f"{draft} has no decoder layers to weaken")
    shutil.copytree(draft, out, ignore=shutil.ignore_patterns(_WEIGHTS, CONFIG_FILE, WEIGHTS_FILE))
    save_file(changed, str(out / _WEIGHTS), metadata={"format": "pt"})


def _noisy(name: str, tensor: torch.Tensor, noise: float, seed: int) -> torch.Tensor:
    if tensor.ndim != 2 or ".layers." not in name or "visual" in name:
        return tensor
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
    added = torch.randn(tensor.shape, generator=generator) * (noise * float(tensor.float().std()))
    return (tensor.float() + added).to(tensor.dtype)
