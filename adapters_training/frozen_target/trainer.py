"""What is declared of a training on a frozen target's hidden states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from torch import nn
from tqdm import tqdm

from adapters_training.batches import Maker, Plan, Run
from adapters_training.data_parallel import Replicas
from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.config import FREE, FrozenTargetConfig
from adapters_training.trainer import StepLosses, Trainer
from speculation.vlm.model import Vlm

F = TypeVar("F", bound=FrozenTargetConfig)

PROGRAM = 700e6
"""Python, torch and what they load."""
ADAM_BYTES = 16
"""Bytes of a float32 weight that learns: itself, its gradient and two moments."""


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
