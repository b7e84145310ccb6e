"""Data-parallel training: processes that `torchrun` started, each with its own frames, average their gradients.

DistributedDataParallel wants one forward for every step; here a step may touch the vision tower alone, so the mean is
taken by hand over whatever has a gradient, which is the same parameters in every process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist


class Replicas:
    """The processes of one training: `rank` of `size`. A process started without `torchrun` is the only one."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Meet the others, over NCCL where the gradients are on a GPU (`device`; None: the CPU)."""
        self._device = device or torch.device("cpu")
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if self._device.type == "cuda" else "gloo")

    def average(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its mean over the processes."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        parts = torch.split(flat, [g.numel() for g in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def mean(self, number: float) -> float:
        """Return the mean of `number` over the processes, the same in each of them."""
        if self.size == 1:
            return number
        total = torch.tensor([number], dtype=torch.float64, device=self._device)
        dist.all_reduce(total)
        return float(total[0]) / self.size

    def close(self) -> None:
        """Part once all processes are done: one that leaves early aborts those that still talk to it."""
        if self.size > 1 and dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
