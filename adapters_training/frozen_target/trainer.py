"""What is declared of a training on a frozen target's hidden states, and its settings.

Defaults are those of the Early Exits paper where it names one: Venkatesha, Kundu, Panda: "Fast and Cost-effective
Speculative Edge-Cloud Decoding with Early Exits", Sec. 3 ("Early Exit Training") and Table 2: 10 epochs, batch size 1,
learning rate 1e-4, context 1600 (800 for the 13 B model). The paper names no schedule, warm-up or clipping.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Meta
from torch import nn
from tqdm import tqdm

from adapters_training.batches import Maker, Plan, Run
from adapters_training.data_parallel import Replicas
from adapters_training.frozen_target.batches import Batch
from adapters_training.trainer import LearningConfig, StepLosses, Trainer
from speculation.vlm.model import Vlm
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
        Quantisation, Meta(description="of the target while loading: none, nf4 or int8_weight_only")
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


F = TypeVar("F", bound=FrozenTargetConfig)


@dataclass(frozen=True)
class Prepared(Generic[F]):
    """A training that can begin: where it runs, the target, which records each step takes, what they become.

    `layers` are those whose outputs are learned from. `held_out(limit)` yields the batches to measure on, of at most
    `limit` records.
    """

    config: F
    replicas: Replicas
    vlm: Vlm
    layers: tuple[int, ...]
    plan: Plan
    maker: Maker[Batch]
    held_out: Callable[[int], Iterator[Batch]]


class FrozenTrainer(Trainer[F]):
    """A training of modules on the hidden states of one frozen target."""

    kind: ClassVar[type[FrozenTargetConfig]]
    made: ClassVar[str]
    """The name, in messages, of what a run writes into its folder."""
    file: ClassVar[str]
    """Name of a file that every finished run has in its folder."""
    smaller: ClassVar[str]
    """Options to try where there is too little memory."""

    def __init__(self, prepared: Prepared[F]) -> None:
        """Make what learns, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        self.prepared, self.vlm = prepared, prepared.vlm
        config, plan, replicas = prepared.config, prepared.plan, prepared.replicas
        modules = {"weights": self.build(config)}
        forwards = Run(plan, prepared.maker, config.seed, replicas.rank)
        super().__init__(config, replicas, modules, forwards, config.steps or plan.steps(config.epochs))

    @staticmethod
    @abstractmethod
    def layers_of(config: Any, text: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the layers that are learned from, by the decoder's config. Raises ValueError for what cannot be."""

    @staticmethod
    @abstractmethod
    def weights_of(config: Any, text: Mapping[str, Any], layers: int) -> int:
        """Return about how many weights learn."""

    @abstractmethod
    def build(self, config: F) -> nn.Module:
        """Return the weights that learn, as they begin. Raises ValueError for a target that they do not suit."""

    @abstractmethod
    def finish(self, config: F, folder: Path) -> dict[str, Any]:
        """Write what was trained, as it is served, into a folder, and return what it is worth on held-out data."""

    @staticmethod
    @abstractmethod
    def table(results: Mapping[str, Any]) -> Sequence[str]:
        """Return the lines that show what was measured."""

    def used(self) -> F:
        return msgspec.structs.replace(self.prepared.config, steps=self.steps, layers=self.prepared.layers)

    @property
    def settings(self) -> dict[str, Any]:
        config, plan = self.prepared.config, self.prepared.plan
        chosen = {name: value for name, value in msgspec.to_builtins(config).items() if name not in FREE}
        return chosen | {
            "steps": self.steps,
            "layers": list(self.prepared.layers),
            "data": list(config.data),
            "target fingerprint": self.vlm.fingerprint,
            "records": plan.records,
            "records a step": plan.records_a_step,
        }

    def count(self, batch: Batch, total: StepLosses) -> None:
        """Enter what the target reads of a batch, and say which records were passed over."""
        for problem in batch.problems:
            tqdm.write(f"passed over: {problem}")
        total.tokens += batch.ids.numel()
        total.cut += batch.truncated
        total.passed += len(batch.problems)
