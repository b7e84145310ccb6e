"""Everything that can go wrong before training begins, checked in order of cost: settings, data, memory, model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from transformers import AutoTokenizer

from adapters_training import devices
from adapters_training.encoding import Encoder
from adapters_training.exits import memory
from adapters_training.exits.batches import Batch, Conversations, Maker, PackedFrames, Plan
from adapters_training.exits.config import Dtype, FrozenTargetConfig, TrainingConfig
from adapters_training.sources.mixture import Mixture, open_mixture
from adapters_training.wording import form_of
from speculation.language.prompts import VOCABULARY_FILE
from speculation.vlm.folder import SEEING, find_model, folder_fingerprint, read_config
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.memory import text_config

HELD_OUT_EVERY = 50
"""Without held-out data every 50th record is kept from training, the first included."""


C = TypeVar("C", bound=FrozenTargetConfig)


@dataclass(frozen=True)
class Prepared(Generic[C]):
    """A training that can begin: where it runs, the target, which records each step takes, what they become.

    `layers` are those whose outputs are learned from. `held_out(limit)` yields the batches to measure on, of at most
    `limit` records.
    """

    config: C
    accelerator: Accelerator
    vlm: Vlm
    layers: tuple[int, ...]
    plan: Plan
    maker: Maker[Batch]
    held_out: Callable[[int], Iterator[Batch]]
    need: memory.Need


def prepare(config: TrainingConfig) -> Prepared[TrainingConfig]:
    """Check and open everything for exits. Raises ValueError, in one sentence, for what cannot be trained on."""

    def layers(text: dict[str, Any]) -> tuple[int, ...]:
        return _layers(config, int(text["num_hidden_layers"]), int(text["hidden_size"]))

    def need(folder: Path, described: dict[str, Any], count: int, device: str, dtype: str) -> memory.Need:
        return memory.check(folder, described, config, count, device, dtype)

    return open_target(config, layers, need)


def open_target(
    config: C,
    layers_of: Callable[[dict[str, Any]], tuple[int, ...]],
    need_of: Callable[[Path, dict[str, Any], int, str, str], memory.Need],
) -> Prepared[C]:
    """Check and open target and data of any training. Raises ValueError, in one sentence.

    `layers_of` chooses layers by the decoder's config; `need_of` returns the memory that a training needs, by folder,
    config.json, number of layers, device and dtype. Both raise ValueError for what cannot be.
    """
    torch.set_num_threads(config.threads)
    folder = find_model(config.target)
    folder_fingerprint(folder)
    described = read_config(folder)
    layers = layers_of(text_config(described))
    on_cpu = devices.chosen(config.device).type == "cpu"
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=config.mixed_precision.value)
    device = accelerator.device
    dtype = config.dtype.value
    if config.dtype is Dtype.AUTO:
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    data, held_out = _open_data(config, folder, accelerator.is_main_process)
    for name, mixture in (("data", data), ("held-out", held_out)):
        if mixture.has_images and described["model_type"] not in SEEING:
            raise ValueError(f"--{name} has images, but {folder} is a language model alone: give conversations of text")
    need = need_of(folder, described, len(layers), str(device), dtype)
    vlm = load_vlm(folder, config.model(str(device), dtype))
    numbers, kept = _split(data, held_out)
    plan = Plan(
        len(numbers), _order(data, numbers, config.seed), config.batch, config.accumulation, accelerator.num_processes
    )
    measure = _maker(config, held_out, vlm, augment=False)

    def batches(limit: int) -> Iterator[Batch]:
        measured = kept[:limit]
        for first in range(0, len(measured), config.batch):
            count = min(config.batch, len(measured) - first)
            yield measure(lambda place: int(measured[place % len(measured)]), first, count, 0)

    return Prepared(config, accelerator, vlm, layers, plan, _maker(config, data, vlm, augment=True), batches, need)


def _layers(config: TrainingConfig, count: int, hidden: int) -> tuple[int, ...]:
    layers = config.layers or tuple(range(count - 1))
    if list(layers) != sorted(set(layers)) or not layers or layers[0] < 0 or layers[-1] > count - 2:
        raise ValueError(f"--layers {' '.join(map(str, layers))}: give distinct layers of 0 to {count - 2}, ascending")
    if config.rank >= hidden:
        raise ValueError(f"--rank {config.rank} is no bottleneck in a target of width {hidden}; give less, such as 64")
    return layers


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
