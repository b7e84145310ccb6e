"""Rounding while loading, and checkpoints that are stored rounded: what transformers gets, what it needs."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

from speculation.vlm.families import family_of
from speculation.vlm.folder import INT8_GROUPS, ModelFolderError
from speculation.vlm.settings import Quantisation

PACKAGES = {
    Quantisation.NF4: ("bitsandbytes", "accelerate"),
    Quantisation.INT8_WEIGHT_ONLY: ("torchao",),
}
STORED_PACKAGES = {
    "awq": ("gptqmodel", "accelerate"),
    "gptq": ("gptqmodel", "optimum"),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "torchao": ("torchao",),
}
"""What transformers needs to read a checkpoint that is stored quantised, by its quant_method."""
INSTEAD = "the original checkpoint with quantisation set to nf4 or int8_weight_only"
"""Advice about a checkpoint that cannot be read."""


def stored_quantisation(config: dict[str, Any]) -> str:
    """Return the quant_method that a checkpoint is stored with, empty for none."""
    stored = config.get("quantization_config") or {}
    return str(stored.get("quant_method", "unknown" if stored else ""))


def check_stored(folder: Path, stored: str) -> None:
    """Raise ModelFolderError for a way to store weights that cannot be read here; `stored` is its quant_method."""
    if stored not in (*STORED_PACKAGES, INT8_GROUPS):
        raise ModelFolderError(
            f"model folder {folder} is stored quantised by {stored!r}, read are {', '.join(STORED_PACKAGES)}; take one "
            f"of these, or {INSTEAD}"
        )


def quantisation_config(folder: Path, config: dict[str, Any], wanted: Quantisation, dtype: torch.dtype) -> Any:
    """Return transformers' settings for rounding while loading, None for none.

    Raises ModelFolderError for a missing package, and for a checkpoint that is quantised already.
    """
    stored = stored_quantisation(config)
    if stored:
        check_stored(folder, stored)
        if wanted is not Quantisation.NONE:
            raise ModelFolderError(
                f"model folder {folder} is stored quantised ({stored}); leave quantisation at none or take the original"
            )
        if stored != INT8_GROUPS:
            _need(
                STORED_PACKAGES[stored],
                f"model folder {folder} is stored quantised ({stored}), which",
                f", or take {INSTEAD}",
            )
        return None
    if wanted is Quantisation.NONE:
        return None
    _need(PACKAGES[wanted], f"quantisation {wanted.value}")
    # Vision and the choice of a token suffer most; Qwen's own checkpoints leave them as they are, too.
    whole = [*family_of(config["model_type"]).vision, "lm_head"]
    import transformers

    if wanted is Quantisation.INT8_WEIGHT_ONLY:
        from torchao.quantization import Int8WeightOnlyConfig

        return transformers.TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=whole)
    settings: Any = transformers.BitsAndBytesConfig
    return settings(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=whole
    )


def _need(packages: tuple[str, ...], what: str, instead: str = "") -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelFolderError(f"{what} needs {' and '.join(missing)}: pip install {' '.join(missing)}{instead}")
    for name in packages:
        try:
            importlib.import_module(name)
        except Exception as error:  # one that was built for another torch raises many types
            raise ModelFolderError(f"{what} needs {name}, which does not load: {error}") from None
