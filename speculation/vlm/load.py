"""Model folder or hub name -> `Vlm`, of any family in `families`: 1 M of our own or a real 7B."""

from __future__ import annotations

import logging
import re
import sys
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import transformers
from msgspec.structs import replace
from torch import nn
from transformers import AutoConfig
from transformers.utils.logging import disable_progress_bar

from speculation.text import first_line
from speculation.vlm.families import family_of
from speculation.vlm.families.text import VICUNA_TEMPLATE
from speculation.vlm.folder import (
    INT8_GROUPS,
    ModelFolderError,
    StoredTensor,
    asked_processors,
    check_attention,
    check_vocabulary,
    described,
    end_tokens,
    find_model,
    folder_fingerprint,
    generation_file,
    model_fingerprint,
    read_config,
    repetition_penalty,
    stored_tensors,
    suggested_sampling,
    tokenizer_fingerprint,
    weight_files,
)
from speculation.vlm.load_check import check_logits, expected_logits
from speculation.vlm.memory import DECODER_LAYER, check_memory
from speculation.vlm.model import Vlm
from speculation.vlm.placement import device_map
from speculation.vlm.processing import load_processor
from speculation.vlm.quantise import quantisation_config, stored_quantisation
from speculation.vlm.settings import DEFAULT_SETTINGS, RAW, ModelSettings
from speculation.vlm.storage import read_unpacked

__all__ = [
    "ModelFolderError",
    "folder_fingerprint",
    "load_vlm",
    "model_fingerprint",
    "tokenizer_fingerprint",
]

logger = logging.getLogger(__name__)

TESTED_TRANSFORMERS = ("5.20", "5.24")
"""The oldest and the newest release with which the tests of models, exactness and training were run. pyproject.toml
allows no other, as a test checks."""


def load_vlm(folder: Path | str, settings: ModelSettings = DEFAULT_SETTINGS, **changes: Any) -> Vlm:
    """Load a model folder, or a hub name that is in the local cache, whatever dtype it is stored in.

    `changes` replace single fields of `settings`. Raises ValueError for a setting, ModelFolderError for a folder that
    is no usable model or too large for the device's free memory, or whose generation_config asks for what is not
    applied here, unless `settings.generation` is raw.
    """
    settings = replace(settings, **changes)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    for device in settings.devices:
        _check_device(device)
    _route_logs()
    _warn_of_untested(transformers.__version__)
    folder = find_model(folder, allow_download=settings.allow_download)
    config = read_config(folder)
    check_attention(folder, config)
    weights = weight_files(folder)
    rounding = quantisation_config(folder, config, settings.rounding, getattr(torch, settings.dtype))
    family = family_of(config["model_type"])
    processor = load_processor(folder, config)
    if processor.template == VICUNA_TEMPLATE:
        logger.warning("%s has no chat template; Vicuna's conversation is used", folder)
    if processor.frames is not None:
        processor.frames.limit(settings.min_pixels, settings.max_pixels)
    eos = end_tokens(folder, processor.tokenizer)
    penalty = _penalty(folder, settings)
    places = _places(folder, config, _readable(weights), settings)
    model = _load_model(folder, config, weights, settings, rounding, places).eval().requires_grad_(False)
    if settings.dtype == "float64":
        _use_exact_norms(model)
    text = attrgetter(family.decoder)(model)
    check_vocabulary(folder, len(processor.tokenizer), text.embed_tokens.num_embeddings)
    if processor.frames is not None and processor.image_token != model.config.image_token_id:
        raise ModelFolderError(f"model folder {folder}: image_token_id in config.json is not the tokenizer's")
    vlm = Vlm(
        family=family,
        model=model,
        processor=processor,
        num_layers=len(text.layers),
        vocabulary=len(processor.tokenizer),
        eos=eos,
        fingerprint=model_fingerprint(config, weights, settings.quantisation),
        tokenizer_fingerprint=tokenizer_fingerprint(processor.tokenizer),
        folder=folder,
        quantisation=stored_quantisation(config) or settings.quantisation,
        thinking=processor.thinking,
        repetition_penalty=penalty,
    )
    # While transformers' own forward still runs, see `_take_over`.
    expected = expected_logits(vlm) if settings.load_check else None
    _take_over(vlm, several=len(settings.devices) > 1)
    if expected is not None:
        check_logits(vlm, expected)
    return vlm


def _route_logs() -> None:
    """Let the libraries log as the program does; progress bars are for a person at a terminal without a log.

    By themselves both write to stderr, past the log of a ROS node or a service.
    """
    for name in ("transformers", "huggingface_hub"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    if logging.getLogger().handlers or not sys.stderr.isatty():
        disable_progress_bar()  # type: ignore[no-untyped-call]


@cache
def _warn_of_untested(version: str) -> None:
    """Warn, once, of a transformers whose minor release is not among those that were tested; pip was overruled."""
    oldest, newest = (tuple(map(int, each.split("."))) for each in TESTED_TRANSFORMERS)
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or not oldest <= (int(number[1]), int(number[2])) <= newest:
        first, last = TESTED_TRANSFORMERS
        logger.warning(
            "transformers %s is installed, tested are %s to %s: answers may be wrong without a message; install one of "
            "these: pip install 'transformers==%s.*'", version, first, last, last,
        )  # fmt: skip


def _penalty(folder: Path, settings: ModelSettings) -> float:
    """Return the repetition penalty of a model's answers; log it, and what is not applied. Raises ModelFolderError."""
    path = generation_file(folder)
    if suggested := suggested_sampling(folder):
        logger.info("%s suggests %s; the robot's own sampling setting decides", path, described(suggested))
    if settings.generation == RAW:
        if asked := asked_processors(folder):
            logger.warning("%s asks for %s; generation is raw, so it is not applied", path, described(asked))
        return 1.0
    penalty = repetition_penalty(folder)
    if penalty != 1.0:
        logger.info("answers get the repetition penalty of %s, %g", path, penalty)
    return penalty


def _check_device(device: str) -> None:
    try:
        # An addition, too: a build without kernels for a GPU allocates on it all the same.
        made = torch.ones(1, device=device) + 1
        if made.device.type != "meta":
            made.cpu()
    except (RuntimeError, AssertionError) as error:  # what torch raises where there is no such device
        gpus = torch.cuda.device_count() if device.startswith("cuda:") else 0
        here = f"; GPUs here are cuda:0 to cuda:{gpus - 1}" if gpus else ""
        raise ValueError(f"device {device}: {first_line(error)}{here}") from None


def _readable(weights: list[Path]) -> list[StoredTensor]:
    # A damaged file is reported by the loader, which knows more than its header.
    try:
        return stored_tensors(weights)
    except ModelFolderError:
        return []


def _places(
    folder: Path, config: dict[str, Any], tensors: list[StoredTensor], settings: ModelSettings
) -> dict[str, str] | None:
    """Return which module goes to which device; None: all to the CPU. Raises ModelFolderError for what does not fit."""
    if len(settings.devices) > 1:
        return device_map(folder, config, tensors, settings)
    check_memory(folder, tensors, settings)
    return {"": settings.device} if settings.device != "cpu" else None


def _load_model(
    folder: Path,
    config: dict[str, Any],
    weights: list[Path],
    settings: ModelSettings,
    rounding: Any,
    places: dict[str, str] | None,
) -> Any:
    # On any device but the CPU, and for rounded weights, tensors go where they belong one by one.
    if rounding is not None and places is None:
        places = {"": settings.device}
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(folder)}
    if stored_quantisation(config) == INT8_GROUPS:
        where = _unpacked(folder, config, weights, getattr(torch, settings.dtype))
    family = family_of(config["model_type"])
    try:
        model_class = family.model_class(config["model_type"])
        model, report = model_class.from_pretrained(
            **where,
            dtype=getattr(torch, settings.dtype),
            attn_implementation="sdpa",
            # The grouped product of experts knows no float64.
            experts_implementation="eager" if settings.dtype == "float64" else None,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            quantization_config=rounding,
            device_map=places,
        )
    except (torch.OutOfMemoryError, MemoryError):
        raise ModelFolderError(
            f"model folder {folder}: {settings.device} ran out of memory while loading; choose a smaller dtype, "
            "quantise it, or take a smaller model"
        ) from None
    except Exception as error:
        # transformers and safetensors raise many types here, and each means the same to the user who gave the folder.
        reason = first_line(error)
        if isinstance(error, ImportError):
            raise ModelFolderError(f"model folder {folder} needs a package that is missing: {reason}") from None
        raise ModelFolderError(f"model folder {folder}: weights do not load ({reason}); fetch them again") from None
    # transformers leaves out layers that config.json does not count, and only logs it.
    layers = len(attrgetter(family.decoder)(model).layers)
    found = (DECODER_LAYER.search(str(key)) for key in report["unexpected_keys"])
    if further := [match for match in found if match is not None and int(match[1]) >= layers]:
        raise ModelFolderError(
            f"model folder {folder}: config.json has {layers} layers, the weights have more, such as "
            f"{further[0].string}; fetch config.json again"
        )
    # transformers fills what is missing with random numbers and only logs it.
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            example = sorted(map(str, report[what]))[0]
            why = f"model folder {folder}: weights do not fit config.json, {len(report[what])} {what} such as {example}"
            if example.endswith("lm_head.weight"):
                why += "; where the head is the embedding, set tie_word_embeddings to true, else fetch the model again"
            raise ModelFolderError(why)
    return model


def _take_over(vlm: Vlm, several: bool) -> None:
    """Make a model ready for layers that are run one by one, on several devices or one."""
    if several:
        from accelerate.hooks import remove_hook_from_submodules  # late: one device needs none of it

        # Hooks would move what each module is given, the whole mask for every layer anew; `forward_layers` moves it
        # once a device.
        remove_hook_from_submodules(vlm.model)
    # The head may turn out to be the embedding after all.
    vlm.text.norm.to(vlm.model.lm_head.weight.device)


def _unpacked(folder: Path, config: dict[str, Any], weights: list[Path], dtype: torch.dtype) -> dict[str, Any]:
    """Return what `from_pretrained` takes in place of a folder whose weights are in 8 bits."""
    described = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    del described.quantization_config  # which transformers would refuse
    return {
        "pretrained_model_name_or_path": None,
        "config": described,
        "state_dict": read_unpacked(folder, config, weights, dtype),
    }


def _use_exact_norms(model: nn.Module) -> None:
    # transformers' RMSNorm rounds to float32 inside, so float64 runs would differ by 1e-7 where proofs ask for 1e-9.
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                source: Any = child
                norm = nn.RMSNorm(source.weight.shape[0], eps=source.variance_epsilon)
                norm.weight = source.weight
                setattr(parent, name, norm)
