"""Which device holds which layers of a model that is larger than one device.

Layers run one after another whatever device they are on, so where they are cut costs no time to speak of; what it
decides is memory. Each device holds a run of layers that follow one another, with their keys and values. The vision
tower and the embedding are on the first device, the final norm and the head on the last one or, where the head is the
embedding, beside it on the first.

accelerate loads by such a map, but its `infer_auto_device_map` fills one device after another and leaves the last one
what is left over: sessions would find the first device full. Here the cut is where keys and values have most room.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from speculation.vlm.families import family_of
from speculation.vlm.folder import ModelFolderError, StoredTensor
from speculation.vlm.memory import DECODER_LAYER, available_bytes, gigabytes, text_config, weight_bytes
from speculation.vlm.settings import ModelSettings

_END = re.compile(r"(?:^|\.)(?:lm_head|(?:language_|text_)?model\.norm)\.")


@dataclass(frozen=True)
class Span:
    """Decoder layers `first` to `end` - 1, which are on one device."""

    first: int
    end: int
    device: torch.device

    @property
    def layers(self) -> range:
        """The layers, counted from 0."""
        return range(self.first, self.end)


def spans_of(layers: Sequence[torch.nn.Module]) -> tuple[Span, ...]:
    """Return where a decoder's layers are: the longest runs on one device, in their order."""
    found: list[Span] = []
    for index, layer in enumerate(layers):
        device = next(layer.parameters()).device
        if found and found[-1].device == device:
            found[-1] = Span(found[-1].first, index + 1, device)
        else:
            found.append(Span(index, index + 1, device))
    return tuple(found)


def cut(layers: Sequence[int], before: int, behind: int, free: Sequence[int]) -> tuple[list[int], float]:
    """Return how many layers each device holds, one at least, and the bytes for keys and values that are then left.

    layers: bytes of each layer's weights; before, behind: bytes of what the first and the last device hold besides;
    free: bytes that are free on each device. Of all cuts this is one with most bytes left for each layer's keys and
    values on the device that has least (below 0: weights do not fit), which are those returned. Raises ValueError for
    more devices than layers.
    """
    count, sums = len(layers), [0, *accumulate(layers)]
    if len(free) > count:
        raise ValueError(f"{len(free)} devices for {count} layers")

    def left(device: int, start: int, end: int) -> float:
        held = sums[end] - sums[start] + before * (device == 0) + behind * (device == len(free) - 1)
        return (free[device] - held) / (end - start)

    # best[end]: of all cuts of layers 0 to end - 1 over the devices so far, what is left at most, and by which.
    best: dict[int, tuple[float, list[int]]] = {0: (math.inf, [])}
    for device in range(len(free)):
        further: dict[int, tuple[float, list[int]]] = {}
        for start, (room, counts) in best.items():
            for end in range(start + 1, count + 1):
                room_now = min(room, left(device, start, end))
                if end not in further or room_now > further[end][0]:
                    further[end] = room_now, [*counts, end - start]
        best = further
    room, counts = best[count]
    return counts, room


def device_map(
    folder: Path, config: Mapping[str, Any], tensors: Sequence[StoredTensor], settings: ModelSettings
) -> dict[str, str]:
    """Return which of several devices holds which module, as `from_pretrained` takes it.

    config: of config.json; tensors: what is stored, from which bytes are counted. Raises ModelFolderError where weights
    do not fit, or the devices are more than the layers.
    """
    devices, text = settings.devices, text_config(dict(config))
    sizes = [0] * int(text["num_hidden_layers"])
    before = behind = 0
    tied = is_tied(config, tensors)
    for tensor in tensors:
        size = weight_bytes([tensor], settings.dtype, settings.rounding)
        layer = DECODER_LAYER.search(tensor.name)
        if layer is not None and int(layer[1]) < len(sizes):
            sizes[int(layer[1])] += size
        elif _END.search(tensor.name) and not tied:
            behind += size
        else:
            before += size
    if len(devices) > len(sizes):
        raise ModelFolderError(
            f"model {folder}: {settings.device} are {len(devices)} devices, the model has {len(sizes)} layers; name at "
            "most as many"
        )
    free = [available_bytes(device) for device in devices]
    counts, room = cut(sizes, before, behind, free)
    if room < 0.0:
        need = gigabytes(before + sum(sizes) + behind)
        there = ", ".join(f"{device} {gigabytes(each)}" for device, each in zip(devices, free, strict=True))
        raise ModelFolderError(
            f"model {folder}: its weights take {need} in {settings.dtype} and cannot be cut between layers so "
            f"that they fit what is free ({there}); choose a smaller dtype, quantise it, or name more devices"
        )
    family, end = family_of(config["model_type"]), devices[0] if tied else devices[-1]
    decoder = family.decoder
    places = dict.fromkeys(family.vision, devices[0]) | {
        f"{decoder}.embed_tokens": devices[0],
        f"{decoder}.rotary_emb": devices[0],
        f"{decoder}.norm": end,
        "lm_head": end,
    }
    owners = [device for device, count in zip(devices, counts, strict=True) for _ in range(count)]
    return places | {f"{decoder}.layers.{index}": device for index, device in enumerate(owners)}


def is_tied(config: Mapping[str, Any], tensors: Sequence[StoredTensor]) -> bool:
    """Return whether a model's head is its embedding: as its config.json has it, else where no head is stored."""
    for part in (config, config.get("text_config", {})):
        if "tie_word_embeddings" in part:
            return bool(part["tie_word_embeddings"])
    return not any("lm_head." in tensor.name for tensor in tensors)
