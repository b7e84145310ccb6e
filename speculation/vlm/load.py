"""Model folder -> `Vlm`: Qwen2-VL, Qwen2.5-VL or a language model alone, 1 M of our own or a real 7B."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2ForCausalLM,
    Qwen2VLForConditionalGeneration,
    Qwen3ForCausalLM,
)

from speculation.vlm.processing import VICUNA_TEMPLATE, Processor

logger = logging.getLogger(__name__)

MODEL_CLASSES: dict[str, Any] = {
    "qwen2_vl": Qwen2VLForConditionalGeneration,
    "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration,
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}
SEEING = frozenset({"qwen2_vl", "qwen2_5_vl"})
"""Model types with a vision tower; the others are language models alone."""
STATEFUL_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that change with the longest sequence seen: one model could not serve two sessions."""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
WHOLE_FILE_BYTES = 64 << 20
SAMPLES = 64
SAMPLE_BYTES = 4096
VOLATILE_KEYS = frozenset({"transformers_version", "_name_or_path", "torch_dtype", "dtype", "architectures"})


class ModelFolderError(ValueError):
    """A folder that is no usable model; the text says what is wrong and what to do."""


@dataclass(frozen=True)
class Vlm:
    """A loaded model with what belongs to it. It holds no session state, so any number of caches may use it.

    It may be a language model alone (Llama, Vicuna, Mistral, Qwen2, Qwen3): then `sees_images` is False, prompts have
    no image, and all else is the same.
    `vocabulary` is len(tokenizer), to which logits are cut (checkpoints pad their embedding); `eos` ends an answer.
    """

    model: Any = field(repr=False)
    processor: Processor = field(repr=False)
    num_layers: int
    vocabulary: int
    eos: tuple[int, ...]
    fingerprint: str
    tokenizer_fingerprint: str
    folder: Path

    @property
    def tokenizer(self) -> Any:
        """The folder's tokenizer."""
        return self.processor.tokenizer

    @property
    def text(self) -> Any:
        """The decoder: embed_tokens, rotary_emb, layers, norm."""
        return _decoder(self.model)

    @property
    def sees_images(self) -> bool:
        """Whether the model has a vision tower; otherwise it is a language model alone."""
        return self.processor.images is not None

    @property
    def image_token(self) -> int:
        """Id of the token that stands for a piece of the image, in a model that sees images."""
        return int(self.model.config.image_token_id)

    @property
    def hidden_size(self) -> int:
        """Width of the decoder's layers."""
        return int(self.text.config.hidden_size)

    @property
    def kv_heads(self) -> int:
        """Key/value heads of a decoder layer."""
        return int(self.text.config.num_key_value_heads)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        config = self.text.config
        return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model runs in."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        device: torch.device = self.model.device
        return device


def load_vlm(folder: Path, *, device: str = "cpu", dtype: str = "float32", threads: int | None = 1) -> Vlm:
    """Load a model folder, whatever dtype it is stored in, to run in `dtype` (float32, float64 or bfloat16).

    `threads` sets torch's CPU threads for the whole process (more than one per process starves the other side on a
    small machine); None leaves them. Raises ModelFolderError for a folder that is no usable model.
    """
    folder = Path(folder)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; choose {', '.join(DTYPES)}")
    if threads is not None:
        torch.set_num_threads(threads)
    config = _read_config(folder)
    _check_attention(folder, config)
    weights = _weight_files(folder)
    processor = _load_processor(folder, config["model_type"])
    model = _load_model(folder, config["model_type"], DTYPES[dtype]).to(device).eval().requires_grad_(False)
    if dtype == "float64":
        _use_exact_norms(model)
    text = _decoder(model)
    vocabulary = len(processor.tokenizer)
    if vocabulary > text.embed_tokens.num_embeddings:
        raise ModelFolderError(
            f"model folder {folder}: the tokenizer has {vocabulary} tokens but the model only "
            f"{text.embed_tokens.num_embeddings}; they do not belong together"
        )
    if processor.images is not None and processor.image_token != model.config.image_token_id:
        raise ModelFolderError(f"model folder {folder}: image_token_id in config.json is not the tokenizer's")
    return Vlm(
        model=model,
        processor=processor,
        num_layers=len(text.layers),
        vocabulary=vocabulary,
        eos=_eos_tokens(folder, processor.tokenizer),
        fingerprint=model_fingerprint(config, weights),
        tokenizer_fingerprint=tokenizer_fingerprint(processor.tokenizer),
        folder=folder,
    )


def model_fingerprint(config: dict[str, Any], weights: list[Path]) -> str:
    """Return 16 hex digits that name a model: its config and weights.

    Of each safetensors file the size, the header (every tensor's name, dtype, shape, place) and the data count: all of
    a file up to 64 MiB, of a larger one 64 samples of 4 KiB spread evenly, so that 15 GB take milliseconds. Two models
    trained apart differ in every sample; a file edited by hand in one tensor may go unnoticed.
    """
    digest = hashlib.blake2b(digest_size=8)
    stable = {key: value for key, value in config.items() if key not in VOLATILE_KEYS}
    digest.update(json.dumps(stable, sort_keys=True).encode())
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            if not 0 < header <= size - 8:
                raise ModelFolderError(
                    f"{path} is no safetensors file (an unfinished download or a Git LFS pointer?); fetch it again"
                )
            digest.update(file.read(header))
            if size <= WHOLE_FILE_BYTES:
                digest.update(file.read())
                continue
            first, last = 8 + header, size - SAMPLE_BYTES
            for sample in range(SAMPLES):
                file.seek(first + (last - first) * sample // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """Return the fingerprint that `load_vlm` gives the model of a folder, without loading it. Raises as `load_vlm`."""
    return model_fingerprint(_read_config(folder), _weight_files(folder))


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return 16 hex digits that name what token ids mean: vocabulary, merges and special tokens."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in backend.get("merges", [])]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    specials = sorted(tokenizer.get_added_vocab().items(), key=lambda item: (item[1], item[0]))
    text = json.dumps([vocabulary, merges, specials], ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ModelFolderError(f"model folder {folder} does not exist; give the path of a model's folder")
    path = folder / "config.json"
    if not path.is_file():
        raise ModelFolderError(f"model folder {folder} has no config.json; give the path of a model's folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFolderError(f"model folder {folder}: config.json is no JSON: {error}; fetch it again") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in MODEL_CLASSES:
        raise ModelFolderError(
            f"model folder {folder} holds a model of type {kind!r}; known are {', '.join(MODEL_CLASSES)}"
        )
    return dict(config)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise ModelFolderError(f"model folder {folder} lacks its weights, {name}; fetch or train the model")
    return [folder / name for name in names]


def _check_attention(folder: Path, config: dict[str, Any]) -> None:
    text = config | config.get("text_config", {})
    always = config["model_type"] == "mistral"  # the others slide only where they are told to
    window = text.get("sliding_window", 4096)
    slides = window is not None and (always or text.get("use_sliding_window"))
    if slides and (always or text["num_hidden_layers"] > text.get("max_window_layers", 28)):
        raise ModelFolderError(
            f"model folder {folder}: sliding-window attention ({window} tokens) is not supported; if prompt and answer "
            "stay shorter than that, switch it off in config.json"
        )
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind in STATEFUL_ROPE:
        raise ModelFolderError(
            f"model folder {folder}: rotary embeddings of type {kind!r} change with every session's length and are not "
            "supported; use a checkpoint with default, linear, yarn or llama3 ones"
        )


def _decoder(model: Any) -> Any:
    return getattr(model.model, "language_model", model.model)


def _load_processor(folder: Path, kind: str) -> Processor:
    try:
        processor = Processor.load(folder, sees=kind in SEEING, template=VICUNA_TEMPLATE if kind == "llama" else "")
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelFolderError(
            f"model folder {folder}: tokenizer or processor files do not load ({reason}); fetch them again"
        ) from None
    if processor.template == VICUNA_TEMPLATE:
        logger.warning("%s has no chat template; Vicuna's conversation is used", folder)
    return processor


def _load_model(folder: Path, kind: str, dtype: torch.dtype) -> Any:
    try:
        model, report = MODEL_CLASSES[kind].from_pretrained(
            str(folder),
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        # transformers and safetensors raise many types here, and each means the same to whoever gave the folder.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelFolderError(f"model folder {folder}: weights do not load ({reason}); fetch them again") from None
    # transformers fills what is missing with random numbers and only logs it.
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            example = sorted(map(str, report[what]))[0]
            raise ModelFolderError(
                f"model folder {folder}: weights do not fit config.json, {len(report[what])} {what} such as {example}"
            )
    return model


def _eos_tokens(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    tokens = {int(tokenizer.eos_token_id)} if tokenizer.eos_token_id is not None else set()
    if (folder / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
        stops = generation.eos_token_id
        tokens.update([stops] if isinstance(stops, int) else stops or ())
        if generation.repetition_penalty not in (None, 1.0):
            logger.warning(
                "%s asks for repetition_penalty=%s; it is not applied, answers are the model's raw logits",
                folder / "generation_config.json",
                generation.repetition_penalty,
            )
    if not tokens:
        raise ModelFolderError(f"model folder {folder} names no token that ends an answer; set eos_token_id")
    return tuple(sorted(tokens))


def _use_exact_norms(model: nn.Module) -> None:
    # transformers' RMSNorm rounds to float32 inside, so float64 runs would differ by 1e-7 where proofs ask for 1e-9.
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                source: Any = child
                norm = nn.RMSNorm(source.weight.shape[0], eps=source.variance_epsilon)
                norm.weight = source.weight
                setattr(parent, name, norm)
