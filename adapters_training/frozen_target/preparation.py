"""Everything that can go wrong before training begins, checked in order of cost: settings, data, memory, model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoTokenizer

from adapters_training import devices
from adapters_training.batches import Maker, Plan
from adapters_training.data_parallel import Replicas
from adapters_training.encoding import Encoder
from adapters_training.frozen_target.batches import Batch, Conversations, PackedFrames
from adapters_training.frozen_target.config import Dtype, FrozenTargetConfig
from adapters_training.frozen_target.trainer import ADAM_BYTES, PROGRAM, F, FrozenTrainer, Prepared
from adapters_training.sources.mixture import Mixture, open_mixture
from adapters_training.wording import form_of
from speculation.language.prompts import VOCABULARY_FILE
from speculation.vlm.families import family_of
from speculation.vlm.folder import find_model, folder_fingerprint, read_config, stored_tensors, weight_files
from speculation.vlm.load import load_vlm
from speculation.vlm.memory import available_bytes, gigabytes, text_config, weight_bytes
from speculation.vlm.model import Vlm

HELD_OUT_EVERY = 50
"""Without held-out data every 50th record is kept from training, the first included."""


def prepare(kind: type[FrozenTrainer[F]], config: F) -> Prepared[F]:
    """Check and open target and data of a training. Raises ValueError, in one sentence."""
    torch.set_num_threads(config.threads)
    folder = find_model(config.target)
    folder_fingerprint(folder)
    described = read_config(folder)
    text = text_config(described)
    layers = kind.layers_of(config, text)
    replicas = Replicas(devices.chosen(config.device))
    device = replicas.device
    dtype = config.dtype.value
    if config.dtype is Dtype.AUTO:
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    data, held_out = _open_data(config, folder, replicas.is_first)
    for name, mixture in (("data", data), ("held-out", held_out)):
        if mixture.has_images and not family_of(described["model_type"]).sees_images:
            raise ValueError(f"--{name} has images, but {folder} is a language model alone: give conversations of text")
    target = weight_bytes(stored_tensors(weight_files(folder)), dtype, config.quantisation)
    learning = kind.weights_of(config, text, len(layers)) * ADAM_BYTES
    need, free = target + learning + PROGRAM, available_bytes(str(device))
    if need > free:
        raise ValueError(
            f"too little memory: training {kind.made} of {folder} needs {gigabytes(need)} (target {gigabytes(target)}, "
            f"{kind.made} {gigabytes(learning)}) and some for each step, {device} has {gigabytes(free)} free; try "
            f"--dtype bfloat16, or less {kind.smaller}"
        )
    vlm = load_vlm(folder, config.model(str(device), dtype))
    numbers, kept = _split(data, held_out)
    plan = Plan(len(numbers), _order(data, numbers, config.seed), config.batch, config.accumulation, replicas.size)
    measure = _maker(config, held_out, vlm, augment=False)

    def batches(limit: int) -> Iterator[Batch]:
        measured = kept[:limit]
        for first in range(0, len(measured), config.batch):
            count = min(config.batch, len(measured) - first)
            yield measure(lambda place: int(measured[place % len(measured)]), first, count, 0)

    return Prepared(config, replicas, vlm, layers, plan, _maker(config, data, vlm, augment=True), batches)


def _open_data(config: FrozenTargetConfig, folder: Path, report: bool) -> tuple[Mixture, Mixture]:
    forbidden = _special_tokens(folder)
    images = Path(config.images) if config.images else None
    if images is not None and not images.is_dir():
        raise ValueError(f"--images {images} is no folder")
    guide, form = not (folder / VOCABULARY_FILE).exists(), form_of(folder)
    data = open_mixture(config.data, "data", images, forbidden, guide, form)
    held_out = data
    if config.held_out:
        held_out = open_mixture(config.held_out, "held-out", images, forbidden, guide, form)
    if report:
        data.report("data")
        if held_out is not data:
            held_out.report("held-out")
    return data, held_out


def _special_tokens(folder: Path) -> tuple[str, ...]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"--target {folder}: its tokenizer does not load ({reason})") from None
    return tuple(tokenizer.get_added_vocab())


def _split(data: Mixture, held_out: Mixture) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the numbers of the records to train on and of those to measure on."""
    numbers = np.arange(len(data))
    if held_out is not data:
        return numbers, np.arange(len(held_out))
    chosen = numbers % HELD_OUT_EVERY == 0
    if chosen.all():
        raise ValueError("--data holds one usable record; give more, or others with --held-out")
    return numbers[~chosen], numbers[chosen]


def _order(data: Mixture, numbers: npt.NDArray[np.int64], seed: int) -> Callable[[int], npt.NDArray[np.int64]]:
    wanted = np.zeros(len(data), dtype=np.bool_)
    wanted[numbers] = True

    def order(epoch: int) -> npt.NDArray[np.int64]:
        shuffled = data.order(seed, epoch)
        return shuffled[wanted[shuffled]]

    return order


def _maker(config: FrozenTargetConfig, data: Mixture, vlm: Vlm, augment: bool) -> Maker[Batch]:
    if config.packed:
        return PackedFrames(data, vlm, config.questions, augment)
    pad = vlm.tokenizer.pad_token_id
    return Conversations(data, Encoder(vlm, config.context), pad if pad is not None else vlm.eos[0])
