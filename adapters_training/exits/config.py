"""Every setting of an adapter training. Defaults are those of the Early Exits paper where it names one.

Venkatesha, Kundu, Panda: "Fast and Cost-effective Speculative Edge-Cloud Decoding with Early Exits", Sec. 3 ("Early
Exit Training") and Table 2: an adapter after each layer but the last, trained on the LM head's loss, 10 epochs, batch
size 1, learning rate 1e-4, context 1600 (800 for the 13 B model). The paper names no rank, schedule, warm-up or
clipping; its 3.26 M weights an exit at a width of 4096 are a bottleneck of about 400.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from adapters_training.devices import Device
from speculation.vlm.settings import ModelSettings, Quantisation


class Loss(str, Enum):
    """What an exit learns: the data's tokens (the paper's), the last layer's distribution, or both."""

    CE = "ce"
    KL = "kl"
    MIX = "mix"


class Schedule(str, Enum):
    """How the learning rate goes on after the warm-up; the latter two end at 2 % of it."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Precision(str, Enum):
    """What the target's forward is computed in where its weights are float32 (accelerate's mixed precision)."""

    NO = "no"
    BF16 = "bf16"


class Dtype(str, Enum):
    """What the target is loaded in: float32 on a CPU and bfloat16 on a GPU, or as given."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class FrozenTargetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of any training on the hidden states of a frozen target; each is an option of the command line and a
    line of a YAML file."""

    target: Annotated[str, Meta(min_length=1, description="model folder (or hub name) of the frozen target")]
    data: Annotated[tuple[str, ...], Meta(min_length=1, description="files and folders to train on")]
    out: Annotated[str, Meta(min_length=1, description="folder for what is trained; a killed run goes on from it")]
    held_out: Annotated[
        tuple[str, ...], Meta(description="data to measure on, never trained on; none: every 50th record of --data")
    ] = ()
    held_out_samples: Annotated[int, Meta(ge=1, description="how many held-out records are measured")] = 200
    images: Annotated[str, Meta(description="folder that image paths are relative to; none: their file's")] = ""
    packed: Annotated[
        bool, Meta(description="several questions about a frame in one sequence (simulator shards, embedded pair)")
    ] = False
    questions: Annotated[int, Meta(ge=1, description="with --packed: questions a frame")] = 4

    epochs: Annotated[float, Meta(gt=0.0, description="passes over the data, unless --steps or --minutes")] = 10.0
    steps: Annotated[int, Meta(ge=0, description="optimiser steps; 0: as many as --epochs takes")] = 0
    minutes: Annotated[
        float, Meta(ge=0.0, description="steps by the clock: speed is measured first, then the number is fixed")
    ] = 0.0
    batch: Annotated[int, Meta(ge=1, description="records a forward and process")] = 1
    accumulation: Annotated[int, Meta(ge=1, description="forwards a process for one optimiser step")] = 1
    context: Annotated[int, Meta(ge=16, description="tokens of a conversation that are kept")] = 1600
    learning_rate: Annotated[float, Meta(gt=0.0, le=1.0, description="AdamW's, at its highest")] = 1e-4
    schedule: Annotated[Schedule, Meta(description="constant, linear or cosine after the warm-up")] = Schedule.CONSTANT
    warmup_steps: Annotated[int, Meta(ge=0, description="steps in which the learning rate rises from 0")] = 0
    weight_decay: Annotated[float, Meta(ge=0.0, description="AdamW's")] = 0.01
    max_grad_norm: Annotated[
        float, Meta(gt=0.0, description="gradients, each exit's by itself, are clipped to this norm")
    ] = 1.0
    seed: Annotated[int, Meta(ge=0, description="of weights, order and wording")] = 0

    device: Annotated[Device, Meta(description="auto (a GPU where there is one), cpu or cuda")] = Device.AUTO
    dtype: Annotated[Dtype, Meta(description="of the target: auto, float32 or bfloat16")] = Dtype.AUTO
    quantisation: Annotated[
        Quantisation, Meta(description="of the target while loading: none, nf4, int8 or int8_weight_only")
    ] = Quantisation.NONE
    max_pixels: Annotated[int, Meta(ge=0, description="images are resized to at most so many; 0: the model's own")] = 0
    mixed_precision: Annotated[Precision, Meta(description="no or bf16: of float32 forwards")] = Precision.NO
    head_tokens: Annotated[
        int, Meta(ge=1, description="tokens whose logits are in memory at once; less is less memory")
    ] = 512
    threads: Annotated[int, Meta(ge=1, description="CPU threads")] = 1
    workers: Annotated[
        int, Meta(ge=-1, le=256, description="processes that prepare data; -1: none on a CPU, enough for a GPU")
    ] = -1
    checkpoint_seconds: Annotated[float, Meta(ge=0.0, description="time between checkpoints")] = 120.0

    def model(self, device: str, dtype: str) -> ModelSettings:
        """Return how the target is loaded on the device and in the dtype that were found for it."""
        return ModelSettings(
            device=device,
            dtype=dtype,  # type: ignore[arg-type]
            threads=self.threads,
            quantisation=self.quantisation.value,
            max_pixels=self.max_pixels,
        )


class TrainingConfig(FrozenTargetConfig, frozen=True, forbid_unknown_fields=True):
    """Settings of one training of exits."""

    layers: Annotated[tuple[int, ...], Meta(description="exit after these layers, from 0; none: all but the last")] = ()
    rank: Annotated[int, Meta(ge=1, description="width of the adapters' bottleneck")] = 400
    loss: Annotated[Loss, Meta(description="ce: the data's tokens; kl: the last layer's distribution; mix: both")] = (
        Loss.CE
    )
    ce_share: Annotated[float, Meta(ge=0.0, le=1.0, description="with loss mix: weight of ce; kl has the rest")] = 0.33


FREE = frozenset({"out", "minutes", "epochs", "held_out", "held_out_samples", "threads", "workers",
                  "checkpoint_seconds", "images"})  # fmt: skip
"""Settings that may change between the parts of a run: they do not decide what is learned."""
