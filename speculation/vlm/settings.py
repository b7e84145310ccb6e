"""How a model is loaded: settings of `load_vlm`, verifier and robot, checked before anything is read."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from speculation.frames import MAX_PIXELS
from speculation.settings import check

MIN_PIXELS = 56 * 56
RAW = "raw"
"""The value of `ModelSettings.generation` under which nothing of a generation_config changes the logits."""


class Quantisation(str, Enum):
    """What the decoder's linear layers are rounded to while loading; vision tower, embedding and head stay whole."""

    NONE = "none"
    NF4 = "nf4"
    """4-bit normal float (QLoRA, arXiv 2305.14314), bitsandbytes."""
    INT8_WEIGHT_ONLY = "int8_weight_only"
    """8-bit weights, torchao."""


class ModelSettings(msgspec.Struct, frozen=True):
    """How one model runs. Raises ValueError, naming the setting, for a value that is out of range.

    More than one thread per process starves the other side on a small machine.
    """

    device: Annotated[
        str,
        Meta(description="where the model runs, e.g. cpu or cuda; cuda:0,cuda:1: its layers are spread over several"),
    ] = "cpu"
    dtype: Annotated[Literal["float32", "float64", "bfloat16", "float16"], Meta(description="what it computes in")] = (
        "float32"
    )
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="CPU threads of the model, for the whole process"),
    ] = 1
    """None, from code alone, leaves torch's own number."""
    quantisation: Annotated[
        Literal["none", "nf4", "int8_weight_only"], Meta(description="rounding of the weights while loading")
    ] = "none"
    min_pixels: Annotated[
        int, Meta(ge=0, le=MAX_PIXELS, description="least pixels of a resized frame; 0 keeps the model's own")
    ] = 0
    max_pixels: Annotated[
        int, Meta(ge=0, le=MAX_PIXELS, description="most pixels of a resized frame; 0 keeps the model's own")
    ] = 0
    load_check: Annotated[
        bool, Meta(description="compare the project's own forward with transformers' once, when the model is loaded")
    ] = True
    generation: Annotated[
        Literal["checkpoint", "raw"],
        Meta(
            description="checkpoint: the model's answers get what its generation_config asks for, the repetition "
            "penalty, and what cannot be applied is refused; raw: its raw logits decide"
        ),
    ] = "checkpoint"
    allow_download: Annotated[bool, Meta(description="fetch a model that is given by its name on the hub")] = False

    def __post_init__(self) -> None:
        check(self)
        self._check_devices()
        if self.dtype == "float64" and self.rounding is not Quantisation.NONE:
            raise ValueError(f"quantisation {self.quantisation!r} makes no sense in float64; choose another dtype")
        for name in ("min_pixels", "max_pixels"):
            value = getattr(self, name)
            if value and not MIN_PIXELS <= value <= MAX_PIXELS:
                raise ValueError(f"{name} {value} is outside {MIN_PIXELS} to {MAX_PIXELS}; 0 keeps the model's own")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is more than max_pixels {self.max_pixels}")

    def _check_devices(self) -> None:
        names = self.devices
        if len(names) == 1:
            return
        kinds = list(dict.fromkeys(name.partition(":")[0] for name in names))
        if len(kinds) > 1:
            raise ValueError(f"device {self.device!r} mixes {' and '.join(kinds)}; give several of one kind")
        if kinds == ["cpu"]:
            raise ValueError(f"device {self.device!r}: the CPU is one device; give cpu")
        if not all(re.fullmatch(r"[a-z]+:\d+", name) for name in names):
            raise ValueError(f"device {self.device!r}: each of several devices has its number, as cuda:0,cuda:1 have")
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise ValueError(f"device {self.device!r} names {', '.join(twice)} more than once")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that `device` names, in the order of the layers that they hold."""
        return tuple(name.strip() for name in self.device.split(","))

    @property
    def rounding(self) -> Quantisation:
        """The quantisation as what it is."""
        return Quantisation(self.quantisation)


DEFAULT_SETTINGS = ModelSettings()
