"""A fed head's folder: fed_head.json, the bottleneck for the verifier and the head for the robot (torch)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speculation.fed.config import FORMAT, FedConfig
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.head import FedHead
from speculation.file_modes import share
from speculation.text import first_line
from speculation.vlm.folder import ModelFolderError
from speculation.vlm.model import Vlm

CONFIG_FILE = "fed_head.json"
ENCODER_FILE = "fed_encoder.safetensors"
HEAD_FILE = "fed_head.safetensors"
_REMEDY = "train one with `python -m adapters_training fed-head`"
M = TypeVar("M", bound=nn.Module)


def save(folder: Path, encoder: FeatureEncoder, head: FedHead) -> FedConfig:
    """Write a head with its bottleneck and return its config; a writing that is broken off leaves the old files.

    Weights that bfloat16 holds exactly, see `round_weights`, are stored so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = msgspec.structs.replace(head.config, features=fingerprint(encoder))
    parts = {name: folder / f"{name}.part" for name in (ENCODER_FILE, HEAD_FILE, CONFIG_FILE)}
    for name, module in ((ENCODER_FILE, encoder), (HEAD_FILE, head)):
        weights = {key: _smallest(weight.detach().cpu()).contiguous() for key, weight in module.state_dict().items()}
        save_file(weights, str(parts[name]))
        share(parts[name])
    parts[CONFIG_FILE].write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=1) + b"\n")
    for name, part in parts.items():
        part.replace(folder / name)
    return config


def load_encoder(folder: Path, vlm: Vlm) -> FeatureEncoder:
    """Read the bottleneck, frozen, for the target that it was made for. Raises ModelFolderError, in one sentence."""
    config = read_config(folder)
    if config.target != vlm.fingerprint:
        raise ModelFolderError(
            f"the fed head in {folder} belongs to target {config.target}, the loaded target is {vlm.fingerprint}; "
            f"{_REMEDY}"
        )
    if config.hidden != vlm.hidden_size or config.layers[-1] >= vlm.num_layers:
        raise ModelFolderError(f"the fed head in {folder} reads layers that the target does not have; {_REMEDY}")
    encoder = _filled(FeatureEncoder(config), folder, ENCODER_FILE)
    if fingerprint(encoder) != config.features:
        raise ModelFolderError(f"{folder / ENCODER_FILE} is not the bottleneck of {CONFIG_FILE} beside it; {_REMEDY}")
    return encoder.to(vlm.head_device)


def load_head(folder: Path, tokenizer: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> FedHead:
    """Read the head, frozen. `tokenizer` is the fingerprint of the robot's own. Raises ModelFolderError."""
    config = read_config(folder)
    if config.tokenizer != tokenizer:
        raise ModelFolderError(
            f"the fed head in {folder} was made for tokenizer {config.tokenizer}, the draft model's is {tokenizer}: "
            "target and draft model must share one"
        )
    return _filled(FedHead(config), folder, HEAD_FILE).to(device=device, dtype=dtype)


def read_config(folder: Path) -> FedConfig:
    """Return what fed_head.json holds. Raises ModelFolderError, in one sentence, where it is missing or unusable."""
    path = Path(folder) / CONFIG_FILE
    try:
        config = msgspec.json.decode(path.read_bytes(), type=FedConfig)
    except OSError:
        raise ModelFolderError(f"fed head folder {folder} has no {CONFIG_FILE}; {_REMEDY}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"the fed head in {folder}: {CONFIG_FILE}: {error}; {_REMEDY}") from None
    if config.format != FORMAT:
        raise ModelFolderError(f"the fed head in {folder} has format {config.format}, not {FORMAT}; {_REMEDY}")
    return config


def fingerprint(encoder: FeatureEncoder) -> str:
    """Return 16 hex digits that name what features are: the target, what is read of it, and the bottleneck."""
    config = encoder.config
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr((FORMAT, config.target, config.layers, config.size, config.prompt_tokens)).encode())
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(name.encode() + weight.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def round_weights(module: nn.Module) -> None:
    """Round all weights to what bfloat16 holds, in the dtype that they have: half the bytes in a file."""
    for weight in module.parameters():
        weight.copy_(weight.to(torch.bfloat16))


def _smallest(weight: Tensor) -> Tensor:
    short = weight.to(torch.bfloat16)
    return short if torch.equal(short.to(weight.dtype), weight) else weight


def _filled(module: M, folder: Path, name: str) -> M:
    path = Path(folder) / name
    try:
        module.load_state_dict(load_file(str(path)))
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        raise ModelFolderError(f"{path} does not load ({first_line(error)}); {_REMEDY}") from None
    return module.requires_grad_(False).eval()
