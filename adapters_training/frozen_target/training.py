"""A training on a frozen target from its settings to its folder: preparation, training, results, command.

Everything that can go wrong before training begins is checked in order of cost: settings, data, memory, model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoTokenizer

from adapters_training import devices
from adapters_training.batches import Maker, Plan
from adapters_training.data_parallel import Replicas
from adapters_training.encoding import Encoder
from adapters_training.files import filling, replacing
from adapters_training.frozen_target.batches import Batch, Conversations, PackedFrames
from adapters_training.frozen_target.trainer import Dtype, F, FrozenTargetConfig, FrozenTrainer, Prepared
from adapters_training.settings import Command
from adapters_training.sources.mixture import Mixture, open_mixture
from adapters_training.trainer import CHECKPOINT_FILE
from speculation.text import first_line
from speculation.vlm.families import family_of
from speculation.vlm.folder import find_model, folder_fingerprint, read_config, stored_tensors, weight_files
from speculation.vlm.load import load_vlm
from speculation.vlm.memory import available_bytes, gigabytes, text_config, weight_bytes
from speculation.vlm.model import Vlm

RESULTS_FILE = "results.json"
HELD_OUT_EVERY = 50
"""Without held-out data every 50th record is kept from training, the first included."""
PROGRAM = 700e6
"""Python, torch and what they load."""
ADAM_BYTES = 16
"""Bytes of a float32 weight that learns: itself, its gradient and two moments."""


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
    data = open_mixture(config.data, "data", images, forbidden, folder)
    held_out = data
    if config.held_out:
        held_out = open_mixture(config.held_out, "held-out", images, forbidden, folder)
    if report:
        data.report("data")
        if held_out is not data:
            held_out.report("held-out")
    return data, held_out


def _special_tokens(folder: Path) -> tuple[str, ...]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"--target {folder}: its tokenizer does not load ({first_line(error)})") from None
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


def train(kind: type[FrozenTrainer[F]], config: F) -> dict[str, Any]:
    """Train or go on, measure on held-out data, write the folder; return what results.json holds.

    Returns nothing in every process but the first. Raises ValueError, in one sentence, for what cannot be trained,
    OSError for a full disk, and TrainingFailed where the loss has risen: nothing is written then.
    """
    trainer = kind(prepare(kind, config))
    trainer.run()
    if not trainer.replicas.is_first:
        return {}
    with filling(trainer.out) as folder:
        found = trainer.finish(trainer.used(), folder)
    return _write_results(trainer, found)


def _write_results(trainer: FrozenTrainer[F], found: dict[str, Any]) -> dict[str, Any]:
    """Write results.json, which ends with what was `found`, and drop the checkpoint; return what the file holds."""
    prepared, counts = trainer.prepared, trainer.counts
    results = {
        "asked": _plain(prepared.config),
        "config": _plain(trainer.used()),
        "steps": trainer.steps,
        "records": prepared.plan.records,
        "records seen": trainer.steps * prepared.plan.records_a_step,
        "seconds": round(counts.seconds, 1),
        "tokens seen": counts.tokens,
        "tokens learned": counts.learned_tokens,
        "tokens per second": round(counts.tokens / max(counts.seconds, 1e-9)),
        "conversations cut at the context": counts.truncated,
        "records passed over": counts.passed_over,
        **found,
    }
    with replacing(trainer.out / RESULTS_FILE) as part:
        part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    trainer.checkpoint.unlink(missing_ok=True)
    return results


def finished_results(config: FrozenTargetConfig) -> dict[str, Any] | None:
    """Return the results in `out` if a run of just these settings ended there, else None."""
    try:
        results: dict[str, Any] = json.loads((Path(config.out) / RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return results if results.get("asked") == _plain(config) else None


def _plain(config: FrozenTargetConfig) -> dict[str, Any]:
    """Return settings as JSON gives them back."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(config))
    return plain


def training_command(name: str, text: str, about: str | None, kind: type[FrozenTrainer[Any]]) -> Command[Any]:
    """Return the command of a training."""

    def run(config: Any) -> int:
        """Train unless that was done, and print what came of it.

        Raises ValueError where --out holds what other settings made.
        """
        results, out = finished_results(config), Path(config.out)
        if results is not None:
            print(f"{out} holds {kind.made} of these settings already; delete the folder to train anew")
        elif (out / kind.file).exists() and not (out / CHECKPOINT_FILE).exists():
            raise ValueError(f"--out {out} holds {kind.made} of other settings; choose another folder, or delete it")
        results = results or train(kind, config)
        if results:
            print("\n".join(kind.table(results)))
        return 0

    return Command(name, text, about, kind.kind, run)
