"""What lies in a model folder, without loading it: config, weight files and their headers, names and fingerprints."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from speculation.settings import expanded
from speculation.text import first_line
from speculation.vlm.families import INSTEAD, KINDS
from speculation.wire import MAX_END_TOKENS, MAX_PENALTY, MIN_PENALTY

WHOLE_FILE_BYTES = 64 << 20
SAMPLES = 64
SAMPLE_BYTES = 4096
VOLATILE_KEYS = frozenset({"transformers_version", "_name_or_path", "torch_dtype", "dtype", "architectures"})
STATEFUL_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that change with the longest sequence seen: one model could not serve two sessions."""
INT8_GROUPS = "spec_vlm_nav_int8"
"""quant_method of a folder whose weights `speculation.vlm.storage` has stored."""
INT8_FILE = "model.int8.safetensors"
SCALE_SUFFIX = ".int8_scale"
GGUF = ".gguf"
"""The end of the name of a llama.cpp checkpoint, which drafts (`edge_drafter.llama_cpp`)."""
DOWNLOAD_VARIABLE = "SPEC_VLM_NAV_DOWNLOAD"
_HUB_NAME = re.compile(r"(?:hf:/{1,2})?(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_ADDRESS = re.compile(r"https?:/")
_SNAPSHOT = re.compile(r"models--(?P<name>[^/\\]+)[/\\]snapshots[/\\][^/\\]+$")
_NEEDED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_LOGITS_SETTINGS = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "encoder_no_repeat_ngram_size": 0,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "stop_strings": None,
    "token_healing": False,
}
"""What a generation_config may ask for that changes any answer, and the value that asks for nothing."""
_PENALTY = "repetition_penalty"
"""The one of them that is applied."""
_DRAW_SETTINGS = {
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "min_p": 0.0,
    "top_h": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""The same for what changes sampled answers only."""


class ModelFolderError(ValueError):
    """A folder that is no usable model; the text names what is wrong and what to do."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a weight file, as its header lists it: `dtype` in safetensors' words, e.g. BF16."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class GgufFiles(NamedTuple):
    """The files of a llama.cpp checkpoint."""

    weights: Path
    eyes: Path | None
    """The vision tower (mmproj); None for a model that drafts without seeing."""

    @property
    def name(self) -> str:
        """What `gguf_files` reads them from in any working directory."""
        return ",".join(str(path.absolute()) for path in self if path is not None)


def gguf_files(name: Path | str) -> GgufFiles | None:
    """Return the files that MODEL.gguf or MODEL.gguf,MMPROJ.gguf means; None for the name of anything else.

    A relative MMPROJ that is not there is looked for beside MODEL. Raises ModelFolderError for a file that is missing.
    """
    first, *others = (part.strip() for part in str(name).split(","))
    if not first.lower().endswith(GGUF):
        return None
    if len(others) > 1:
        raise ModelFolderError(f"model {name} names {1 + len(others)} files; give MODEL.gguf or MODEL.gguf,MMPROJ.gguf")
    try:
        weights, eyes = expanded(first), expanded(others[0]) if others else None
    except ValueError as error:
        raise ModelFolderError(f"model {error}") from None
    if eyes is not None and not eyes.exists():
        eyes = weights.parent / eyes
    for path in (weights, eyes):
        if path is not None and not path.is_file():
            raise ModelFolderError(f"model file {path} does not exist; give the path of a GGUF file")
    return GgufFiles(weights, eyes)


def find_model(name: Path | str, *, allow_download: bool = False) -> Path:
    """Return the folder that `name` means: a path, or a hub name such as Qwen/Qwen2-VL-2B-Instruct in the local cache.

    A hub name may begin with hf:// and end with @REVISION, a branch, tag or commit. Nothing is fetched unless
    `allow_download` or the environment variable SPEC_VLM_NAV_DOWNLOAD=1 is set. Raises ModelFolderError, saying what to
    do, where there is neither.
    """
    try:
        folder = expanded(name)
    except ValueError as error:
        raise ModelFolderError(f"model {error}") from None
    if _ADDRESS.match(str(name)):
        raise ModelFolderError(f"model {name} is an address; give a folder, or its name on the hub such as Qwen/NAME")
    match = _HUB_NAME.fullmatch(str(name).rstrip("/"))
    if folder.exists() or match is None:
        return folder
    text, revision = match["name"], match["revision"]
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    fetch = allow_download or os.environ.get(DOWNLOAD_VARIABLE) == "1"
    try:
        found = snapshot_download(text, revision=revision, local_files_only=not fetch, allow_patterns=_NEEDED)
        return Path(found)
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    except Exception as error:
        # A hub that is down, unknown, gated or full each raises its own type.
        raise ModelFolderError(f"model {text} cannot be fetched: {first_line(error)}") from None
    wanted = f"{text} --revision {revision}" if revision else text
    raise ModelFolderError(
        f"model {name} does not exist as a folder and is not in this machine's Hugging Face cache; fetch it with "
        f"`hf download {wanted}`, or let it be fetched with --allow-download or {DOWNLOAD_VARIABLE}=1"
    )


def model_name(folder: Path) -> str:
    """Return what people call the model of a folder: its name on the hub where it lies in the cache, else the folder's.

    >>> model_name(Path("hub/models--Qwen--Qwen2-VL-2B-Instruct/snapshots/0123"))
    'Qwen/Qwen2-VL-2B-Instruct'
    """
    match = _SNAPSHOT.search(str(folder))
    return match["name"].replace("--", "/") if match else folder.name


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json. Raises ModelFolderError where there is none, or it is of a type that is not known."""
    if folder.name.lower().endswith(GGUF) or (any(folder.glob("*.gguf")) and not any(folder.glob("*.safetensors"))):
        raise ModelFolderError(
            f"{folder} is of GGUF files, which serve as a robot's draft model (--draft-model MODEL.gguf, "
            "docs/models.md) and nowhere else; take the original checkpoint with quantisation set to nf4 or "
            "int8_weight_only"
        )
    if not folder.is_dir():
        raise ModelFolderError(f"model folder {folder} does not exist; give the path of a model's folder")
    path, adapter = folder / "config.json", folder / "adapter_config.json"
    if adapter.is_file():
        # With peft installed transformers adds it to the weights, and nothing here would notice the other model.
        raise ModelFolderError(_about_adapter(adapter, whole=path.is_file()))
    if not path.is_file():
        raise ModelFolderError(f"model folder {folder} has no config.json; give the path of a model's folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFolderError(f"model folder {folder}: config.json is no JSON: {error}; fetch it again") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in KINDS:
        remedy = INSTEAD.get(str(kind), "for another family open an issue of the project with the model's name")
        raise ModelFolderError(
            f"model folder {folder} holds a model of type {kind!r}; known are {', '.join(KINDS)} (docs/models.md); "
            f"{remedy}"
        )
    described = config.get("text_config", {})
    # Some write null for a checkpoint that is not quantised.
    objects = {"text_config": described, "quantization_config": config.get("quantization_config") or {}}
    for name, held in objects.items():
        if not isinstance(held, dict):
            raise ModelFolderError(f"model folder {folder}: {name} in config.json is no object; fetch it again")
    inner, decoders = described.get("model_type"), KINDS[kind].decoders
    if decoders and inner not in decoders:
        raise ModelFolderError(
            f"model folder {folder} holds a {kind} with a decoder of type {inner!r}; known are {', '.join(decoders)}"
        )
    _check_sizes(folder, config | described)
    return dict(config)


def _check_sizes(folder: Path, text: dict[str, Any]) -> None:
    """Raise ModelFolderError for a decoder whose config.json has no size where there must be one."""
    for name, needed in (("num_hidden_layers", True), ("hidden_size", False), ("num_attention_heads", False)):
        size = text.get(name)
        if (needed or size is not None) and not (type(size) is int and size > 0):
            raise ModelFolderError(
                f"model folder {folder}: {name} in config.json is {size!r}, no whole number above 0; fetch it again"
            )


def _about_adapter(path: Path, whole: bool) -> str:
    """Return why a folder with a LoRA adapter is refused; `whole`: it holds a model as well."""
    merge = "merge it first: peft's merge_and_unload, then save_pretrained into a folder of its own"
    if whole:
        return (
            f"model folder {path.parent} holds a LoRA adapter ({path.name}) beside a model, which is another one with "
            f"it than without; {merge}, or, where the weights are merged already, move the adapter's files away"
        )
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        base = None
    return f"model folder {path.parent} is a LoRA adapter{f' of {base}' if base else ''}; {merge}"


def check_attention(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelFolderError for attention that a cache of token trees cannot serve."""
    text = config | config.get("text_config", {})
    always = config["model_type"] == "mistral"  # the others slide only where their config asks for it
    window = text.get("sliding_window", 4096)
    kinds = text.get("layer_types") or ()
    slides = window is not None and (always or text.get("use_sliding_window"))
    late = always or text["num_hidden_layers"] > (text.get("max_window_layers") or 28)
    # A list of layers' kinds decides alone.
    if "sliding_attention" in kinds or (slides and late and not kinds):
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


def check_vocabulary(folder: Path, tokens: int, rows: int) -> None:
    """Raise ModelFolderError for a tokenizer of more tokens than the model's embedding has rows."""
    if tokens > rows:
        raise ModelFolderError(
            f"model folder {folder}: the tokenizer has {tokens} tokens but the model only {rows}; they do not belong "
            "together"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, all of them there. Raises ModelFolderError, naming what lacks."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelFolderError(f"{index} is no index of weights; fetch it again") from None
    else:
        whole = (folder / "model.safetensors").is_file() or not (folder / INT8_FILE).is_file()
        names = ["model.safetensors" if whole else INT8_FILE]
    for name in names:
        if (folder / name).is_file():
            continue
        shards = sorted(folder.glob("model-*-of-*.safetensors"))
        if shards and not index.is_file():
            raise ModelFolderError(
                f"model folder {folder} has {len(shards)} shards of weights but no {index.name}, which says what is in "
                "which; fetch that file, too"
            )
        if any(folder.glob("pytorch_model*.bin")):
            raise ModelFolderError(
                f"model folder {folder} has its weights as pickles (pytorch_model.bin), which may run any code; where "
                "you trust it, load it once with transformers and write it with save_pretrained"
            )
        raise ModelFolderError(f"model folder {folder} lacks its weights, {name}; fetch or train the model")
    return [folder / name for name in names]


def read_header(path: Path) -> bytes:
    """Return the JSON header of a safetensors file. Raises ModelFolderError for any other file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        count = int.from_bytes(file.read(8), "little")
        if not 0 < count <= size - 8:
            raise ModelFolderError(
                f"{path} is no safetensors file (an unfinished download or a Git LFS pointer?); fetch it again"
            )
        return file.read(count)


def stored_tensors(files: Iterable[Path]) -> list[StoredTensor]:
    """Return all tensors of the files by their headers.

    Raises ModelFolderError for a file without one, or one that is cut off.

    Weights in 8 bits with scales, see `speculation.vlm.storage`, are listed as the floats that they become in memory.
    """
    tensors = []
    for path in files:
        try:
            raw = read_header(path)
            header, size = json.loads(raw), path.stat().st_size - 8 - len(raw)
            for name, each in header.items():
                if name != "__metadata__":
                    begin, end = each["data_offsets"]
                    if end > size:
                        raise ModelFolderError(f"{path} is cut off (an unfinished download?); fetch it again")
                    tensors.append(StoredTensor(name, each["dtype"], tuple(each["shape"]), end - begin))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ModelFolderError):
                raise
            raise ModelFolderError(f"{path} has no readable safetensors header; fetch it again") from None
    scaled = {each.name.removesuffix(SCALE_SUFFIX) for each in tensors if each.name.endswith(SCALE_SUFFIX)}
    return [
        StoredTensor(each.name, "BF16", each.shape, 2 * each.count) if each.name in scaled else each
        for each in tensors
        if not each.name.endswith(SCALE_SUFFIX)
    ]


def model_fingerprint(config: dict[str, Any], weights: list[Path], quantisation: str = "none") -> str:
    """Return 16 hex digits that name a model: its config, weights and what they are rounded to while loading.

    Of each safetensors file the size, the header (every tensor's name, dtype, shape, place) and the data count: all of
    a file up to 64 MiB, of a larger one 64 samples of 4 KiB spread evenly, so that 15 GB take milliseconds. Two models
    trained apart differ in every sample; a file edited by hand in one tensor may go unnoticed.
    """
    digest = hashlib.blake2b(digest_size=8)
    stable = {key: value for key, value in config.items() if key not in VOLATILE_KEYS}
    digest.update(json.dumps(stable, sort_keys=True).encode())
    if quantisation != "none":
        digest.update(f"quantisation:{quantisation};".encode())
    for path in weights:
        digest.update(f"{path.name}:{path.stat().st_size};".encode())
        header = read_header(path)
        digest.update(header)
        for part in _sampled(path, 8 + len(header)):
            digest.update(part)
    return digest.hexdigest()


def _sampled(path: Path, first: int) -> Iterator[bytes]:
    """Yield what a fingerprint counts of a file from byte `first` on: all of it, of a large one samples."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_FILE_BYTES:
            file.seek(first)
            yield file.read()
            return
        for sample in range(SAMPLES):
            file.seek(first + (size - SAMPLE_BYTES - first) * sample // (SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)


def gguf_fingerprint(files: GgufFiles) -> str:
    """Return 16 hex digits that name a llama.cpp checkpoint: size and data, as of `model_fingerprint`, of its files."""
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        if path is not None:
            digest.update(f"{GGUF}:{path.stat().st_size};".encode())
            for part in _sampled(path, 0):
                digest.update(part)
    return digest.hexdigest()


def folder_fingerprint(folder: Path, quantisation: str = "none") -> str:
    """Return the fingerprint that loading gives the model of a folder, hub name or GGUF file, without loading it.

    Raises as `load_vlm`.
    """
    if files := gguf_files(folder):
        return gguf_fingerprint(files)
    folder = find_model(folder)
    return model_fingerprint(read_config(folder), weight_files(folder), quantisation)


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return 16 hex digits that name what token ids mean: vocabulary, merges and special tokens."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in backend.get("merges", [])]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    specials = sorted(tokenizer.get_added_vocab().items(), key=lambda item: (item[1], item[0]))
    text = json.dumps([vocabulary, merges, specials], ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def generation_file(folder: Path) -> Path:
    """Return the file that says how answers are generated: generation_config.json, and where there is none config.json.

    transformers reads checkpoints so, too; those of before 2023 have no other file.
    """
    path = folder / "generation_config.json"
    return path if path.is_file() else folder / "config.json"


def generation_config(folder: Path) -> dict[str, Any]:
    """Return the settings of `generation_file`, besides others that config.json has; empty where there is no file.

    In config.json those of the whole model go before those of its decoder. Raises ModelFolderError where the file is no
    JSON object.
    """
    path = generation_file(folder)
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ModelFolderError(f"{path} is no JSON object; fetch it again")
    decoder = found.get("text_config") if path.name == "config.json" else None
    known = {name: value for name, value in found.items() if value is not None}
    return {**decoder, **known} if isinstance(decoder, dict) else known


def asked_processors(folder: Path) -> dict[str, Any]:
    """Return what `generation_config` asks for that changes any answer, sampled or not; see `repetition_penalty`."""
    wanted = generation_config(folder)
    return {
        name: wanted[name] for name, nothing in _LOGITS_SETTINGS.items() if wanted.get(name) not in (None, nothing, [])
    }


def repetition_penalty(folder: Path) -> float:
    """Return the repetition penalty that `generation_config` asks for, 1 for none.

    Raises ModelFolderError for whatever else it asks for that changes any answer, since only the penalty is applied,
    and for a penalty that is no number from MIN_PENALTY to MAX_PENALTY.
    """
    asked = asked_processors(folder)
    penalty, path = asked.pop(_PENALTY, 1.0), generation_file(folder)
    if asked:
        raise ModelFolderError(
            f"{path} asks for {described(asked)}, which cannot be applied here; with generation set to raw answers are "
            "those of the model's raw logits, and nothing of that file is applied but its end tokens"
        )
    if not isinstance(penalty, (int, float)) or not MIN_PENALTY <= penalty <= MAX_PENALTY:
        raise ModelFolderError(
            f"{path}: {_PENALTY} is {penalty!r}, no number from {MIN_PENALTY:g} to {MAX_PENALTY:g}; correct it, or "
            "load the model with generation set to raw"
        )
    return float(penalty)


def described(settings: Mapping[str, Any]) -> str:
    """Return settings of a generation_config as a sentence names them, long values cut."""
    return ", ".join(f"{name}={str(value)[:40]}" for name, value in settings.items())


def suggested_sampling(folder: Path) -> dict[str, Any]:
    """Return what `generation_config` asks for where tokens are sampled; empty where it samples nothing.

    It is not applied: the robot's own `SamplingScheme` decides.
    """
    wanted = generation_config(folder)
    settings = _DRAW_SETTINGS if wanted.get("do_sample") else {}
    return {name: wanted[name] for name, nothing in settings.items() if wanted.get(name) not in (None, nothing)}


def end_tokens(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end an answer: tokenizer's and generation_config's, as far as the tokenizer has them.

    Raises ModelFolderError without any, and for more than a verifier's Welcome may have.
    """
    tokens = {int(tokenizer.eos_token_id)} if tokenizer.eos_token_id is not None else set()
    stops = generation_config(folder).get("eos_token_id")
    try:
        tokens.update(
            int(stop) for stop in (stops if isinstance(stops, list) else [stops] if stops is not None else ())
        )
    except (TypeError, ValueError):
        raise ModelFolderError(
            f"{generation_file(folder)}: eos_token_id is {stops!r}, not a token or a list of tokens"
        ) from None
    # Logits are cut to the tokenizer's length, so no other token can ever end an answer.
    known = sorted(token for token in tokens if 0 <= token < len(tokenizer))
    if not known:
        raise ModelFolderError(f"model folder {folder} names no token that ends an answer; set eos_token_id")
    if len(known) > MAX_END_TOKENS:
        raise ModelFolderError(
            f"model folder {folder} names {len(known)} tokens that end an answer, robots take {MAX_END_TOKENS} at "
            f"most; shorten eos_token_id in its {generation_file(folder).name}"
        )
    return tuple(known)
