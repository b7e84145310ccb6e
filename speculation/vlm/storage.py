"""Weights stored in 8 bits: half the bytes of a bfloat16 file, unpacked while loading, so that nothing runs slower.

Each run of GROUP weights of a row is stored as integers of -127 to 127 and one float16 scale, the largest magnitude of
the run over 127 (absmax, as Q8_0 of GGUF has it with runs of 32). Vectors (norms, biases) stay as they are. A folder so
stored is marked by quantization_config in its config.json. Its weights are in a file of another name, so that other
loaders refuse it: transformers only warns of a quant_method that it does not know, and takes the integers for weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from speculation.file_modes import share
from speculation.text import first_line
from speculation.vlm.folder import INT8_FILE, INT8_GROUPS, SCALE_SUFFIX, ModelFolderError, read_config, weight_files

GROUP = 64
LARGEST = 127
INDEX_FILE = "model.safetensors.index.json"
MEASURED_FILES = ("pass_cost.json",)
"""What was measured on the model by its fingerprint, which changes."""


def pack(weights: Mapping[str, Tensor], group: int = GROUP) -> dict[str, Tensor]:
    """Return weights as they are stored: int8 [as before] and float16 scales [rows, groups] for each matrix.

    Raises ValueError for a weight that is no number.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim < 2 or not weight.is_floating_point():
            packed[name] = weight
            continue
        if not bool(torch.isfinite(weight).all()):
            raise ValueError(f"{name} holds what is no number and cannot be stored")
        runs = _runs(weight.float(), group)
        scales = (runs.abs().amax(-1) / LARGEST).half()
        steps = runs / scales.float().where(scales > 0, 1.0)[..., None]
        whole = steps.round().clamp(-LARGEST, LARGEST).to(torch.int8)
        packed[name] = whole.flatten(1)[:, : weight[0].numel()].reshape(weight.shape).contiguous()
        packed[name + SCALE_SUFFIX] = scales
    return packed


def unpack(packed: Mapping[str, Tensor], group: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights in `dtype` that `pack` has stored. Raises KeyError for integers without scales."""
    weights: dict[str, Tensor] = {}
    for name, weight in packed.items():
        if name.endswith(SCALE_SUFFIX):
            continue
        if weight.dtype is not torch.int8:
            weights[name] = weight.to(dtype)
            continue
        runs = _runs(weight.float(), group) * packed[name + SCALE_SUFFIX].float()[..., None]
        weights[name] = runs.flatten(1)[:, : weight[0].numel()].reshape(weight.shape).to(dtype)
    return weights


def read_unpacked(
    folder: Path, config: Mapping[str, Any], files: Iterable[Path], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return all weights of a folder that is stored so. Raises ModelFolderError for damaged files."""
    group = config["quantization_config"].get("group_size")
    try:
        if not isinstance(group, int) or group < 1:
            raise ValueError(f"group_size {group!r} is not a number of weights")
        return unpack({name: weight for path in files for name, weight in load_file(str(path)).items()}, group, dtype)
    except Exception as error:  # safetensors and torch raise many types here, each means the same to the user
        raise ModelFolderError(
            f"model folder {folder}: weights do not load ({first_line(error)}); fetch them again"
        ) from None


def store(folder: Path, out: Path) -> None:
    """Write a model folder anew with its weights in 8 bits, in one file, into the folder `out`. All else is copied.

    Raises ModelFolderError for a folder that is no model, or stored in some rounded form already.
    """
    config = read_config(folder)
    if config.get("quantization_config"):
        raise ModelFolderError(f"model folder {folder} is stored quantised already; take the original")
    files = weight_files(folder)
    packed = pack({name: weight for path in files for name, weight in load_file(str(path)).items()})
    save_file(packed, str(out / INT8_FILE), metadata={"format": "pt"})
    share(out / INT8_FILE)
    left_out = {*(path.name for path in files), INDEX_FILE, "config.json", *MEASURED_FILES}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in left_out:
            shutil.copyfile(path, out / path.name)
    config["quantization_config"] = {"quant_method": INT8_GROUPS, "bits": 8, "group_size": GROUP}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _runs(weight: Tensor, group: int) -> Tensor:
    """Return a weight's rows in runs [rows, groups, group], the last one of a row filled up with zeros."""
    rows = weight.flatten(1)
    filled = torch.nn.functional.pad(rows, (0, -rows.shape[1] % group))
    return filled.reshape(len(rows), -1, group)
