"""Settings of every training on a frozen target. Defaults are those of the Early Exits paper where it names one.

Venkatesha, Kundu, Panda: "Fast and Cost-effective Speculative Edge-Cloud Decoding with Early Exits", Sec. 3 ("Early
Exit Training") and Table 2: 10 epochs, batch size 1, learning rate 1e-4, context 1600 (800 for the 13 B model). The
paper names no schedule, warm-up or clipping.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from adapters_training.trainer import LearningConfig
from speculation.vlm.settings import ModelSettings, Quantisation


class Dtype(str, Enum):
    """What the target is loaded in: float32 on a CPU and bfloat16 on a GPU, or as given."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class FrozenTargetConfig(LearningConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of any training on the hidden states of a frozen target."""

    target: Annotated[str, Meta(min_length=1, description="model folder (or hub name) of the frozen target")]
    data: Annotated[tuple[str, ...], Meta(min_length=1, description="files and folders to train on")]
    held_out: Annotated[
        tuple[str, ...], Meta(description="data to measure on, never trained on; none: every 50th record of --data")
    ] = ()
    held_out_samples: Annotated[int, Meta(ge=1, description="how many held-out records are measured")] = 200
    images: Annotated[str, Meta(description="folder that image paths are relative to; none: their file's")] = ""
    packed: Annotated[
        bool, Meta(description="several questions about a frame in one sequence (simulator shards, embedded pair)")
    ] = False
    questions: Annotated[int, Meta(ge=1, description="with --packed: questions a frame")] = 4
    layers: Annotated[tuple[int, ...], Meta(description="layers of the target, from 0")] = ()

    epochs: Annotated[float, Meta(gt=0.0, description="passes over the data, unless --steps")] = 10.0
    steps: Annotated[int, Meta(ge=0, description="optimiser steps; 0: as many as --epochs takes")] = 0
    batch: Annotated[int, Meta(ge=1, description="records a forward and process")] = 1
    accumulation: Annotated[int, Meta(ge=1, description="forwards a process for one optimiser step")] = 1
    context: Annotated[int, Meta(ge=16, description="tokens of a conversation that are kept")] = 1600

    dtype: Annotated[Dtype, Meta(description="of the target: auto, float32 or bfloat16")] = Dtype.AUTO
    quantisation: Annotated[
        Quantisation, Meta(description="of the target while loading: none, nf4, int8 or int8_weight_only")
    ] = Quantisation.NONE
    load_check: Annotated[bool, Meta(description="compare the target's forward with transformers' once")] = True
    max_pixels: Annotated[int, Meta(ge=0, description="images are resized to at most so many; 0: the model's own")] = 0
    head_tokens: Annotated[
        int, Meta(ge=1, description="tokens whose logits are in memory at once; less is less memory")
    ] = 512

    def model(self, device: str, dtype: str) -> ModelSettings:
        """Return how the target is loaded on the device and in the dtype that were found for it."""
        return ModelSettings(
            device=device,
            dtype=dtype,  # type: ignore[arg-type]
            threads=self.threads,
            quantisation=self.quantisation.value,
            max_pixels=self.max_pixels,
            load_check=self.load_check,
        )


FREE = frozenset({"out", "epochs", "held_out", "held_out_samples", "threads", "workers",
                  "checkpoint_seconds", "images", "load_check"})  # fmt: skip
"""Settings that may change between the parts of a run: they do not decide what is learned."""
