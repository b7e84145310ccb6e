"""Data-parallel training: processes that `torchrun` or `accelerate launch` started, each with its own records.

DistributedDataParallel wants one forward for every step; here a step may touch a part of what learns, and some have
several forwards, so gradients are summed by hand.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch import distributed as dist


class Replicas:
    """The processes of one training: `rank` of `size`. A process that nobody launched with others is the only one."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Meet the others, over NCCL where the gradients are on a GPU (`device`; None: the CPU)."""
        self.device = device or torch.device("cpu")
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes, where it was."""
        if self.size == 1:
            return values
        total = values.detach().to(self.device, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def mean(self, number: float) -> float:
        """Return the mean of `number` over the processes, the same in each of them."""
        return float(self.sum(torch.tensor(number, dtype=torch.float64))) / self.size

    def wait(self) -> None:
        """Go on once all processes are here."""
        if self.size > 1:
            dist.barrier()
