"""Which records each forward of a training takes; batch k of a run is a function of (settings, k) alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

B_co = TypeVar("B_co", covariant=True)
T = TypeVar("T", bound="TensorFields")


class TensorFields:
    """Base of a frozen dataclass whose fields are tensors, and what stays as it is."""

    def to(self: T, device: torch.device) -> T:
        """Return it with its tensors on a device."""
        return self.changed(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self: T) -> T:
        """Return it in memory that a GPU copies from while it computes (a `DataLoader` calls this)."""
        return self.changed(Tensor.pin_memory)

    def changed(self: T, change: Callable[[Tensor], Tensor]) -> T:
        """Return it with all its tensors changed."""
        own: Any = self
        held = {each.name: getattr(self, each.name) for each in fields(own)}
        moved: T = replace(own, **{name: change(each) for name, each in held.items() if isinstance(each, Tensor)})
        return moved


class Maker(Protocol[B_co]):
    """Makes a batch of `count` records, from place `first` on in the endless row of them that `number` numbers."""

    def __call__(self, number: Callable[[int], int], first: int, count: int, seed: int) -> B_co: ...


@dataclass(frozen=True)
class Plan:
    """Which records each forward of a run takes. `order(epoch)` has the numbers of all as an epoch takes them."""

    records: int
    order: Callable[[int], npt.NDArray[np.int64]]
    batch: int
    accumulation: int = 1
    processes: int = 1

    @property
    def records_a_step(self) -> int:
        """Records that one optimiser step learns from, over all processes."""
        return self.batch * self.accumulation * self.processes

    def steps(self, epochs: float) -> int:
        """Return the optimiser steps that so many epochs take, at least one."""
        return max(1, round(epochs * self.records / self.records_a_step))

    def first(self, step: int, forward: int, process: int) -> int:
        """Return the place of the first record of a forward: places of one step lie together."""
        return ((step * self.accumulation + forward) * self.processes + process) * self.batch


class Run(Dataset[B_co], Generic[B_co]):
    """The forwards of one process in a run: item k is forward k % accumulation of step k // accumulation."""

    def __init__(self, plan: Plan, maker: Maker[B_co], seed: int, process: int) -> None:
        self._plan, self._maker, self._seed, self._process = plan, maker, seed, process
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __getitem__(self, index: int) -> B_co:
        step, forward = divmod(index, self._plan.accumulation)
        first = self._plan.first(step, forward, self._process)
        return self._maker(self._number, first, self._plan.batch, self._seed)

    def _number(self, place: int) -> int:
        epoch, index = divmod(place, self._plan.records)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._plan.order(epoch)
        return int(self._order[index])

    def stream(self, first_step: int, last_step: int, workers: int, pinned: bool = False) -> Iterator[list[B_co]]:
        """Yield the batches of each step, `pinned` in memory that a GPU copies from while it computes."""
        accumulation = self._plan.accumulation
        loader = DataLoader(
            self, batch_size=None, sampler=range(first_step * accumulation, last_step * accumulation),
            num_workers=workers, pin_memory=pinned, multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        batches = iter(loader)
        for _ in range(first_step, last_step):
            yield [next(batches) for _ in range(accumulation)]
