"""Where a training runs: a GPU where there is one, else the CPU; and how many processes prepare its data there."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated, TypeVar

import msgspec
import torch
from msgspec import Meta

from speculation.machine_info import host
from speculation.vlm.settings import ModelSettings

AUTO = "auto"
MOST_WORKERS = 8
"""Number of processes that prepare the data of one GPU, at most; one of them packs some hundred frames a second."""

M = TypeVar("M", bound=ModelSettings)


class Device(str, Enum):
    """Where to train: a GPU where there is one, else the CPU; or one of them in any case."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Precision(str, Enum):
    """The type of number in which float32 weights are multiplied."""

    AUTO = "auto"
    NO = "no"
    BF16 = "bf16"


def precision(asked: Precision, device: torch.device) -> Precision:
    """Return it with bfloat16 on a GPU and float32 on a CPU in place of `auto`."""
    if asked is not Precision.AUTO:
        return asked
    return Precision.BF16 if device.type == "cuda" else Precision.NO


def chosen(device: Device) -> torch.device:
    """Return where this process trains; of several that `torchrun` started each has a GPU of its own.

    Raises ValueError where a GPU is asked for and there is none for this process.
    """
    count = 0 if device is Device.CPU else torch.cuda.device_count()
    if device is Device.CPU or (device is Device.AUTO and not count):
        return torch.device("cpu")
    if not count:
        raise ValueError("--device cuda: torch finds no GPU here; give --device cpu, or install a torch with CUDA")
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= count:
        raise ValueError(f"{number + 1} or more processes on {count} GPUs: give torchrun --nproc-per-node {count}")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


class ModelConfig(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a command that loads models."""

    device: Annotated[str, Meta(description="auto (a GPU where there is one), cpu, cuda or cuda:N")] = AUTO


def resolved(settings: M) -> M:
    """Return settings of a model with a device that torch knows in place of `auto`."""
    return msgspec.structs.replace(settings, device=str(chosen(Device.AUTO))) if settings.device == AUTO else settings


def workers(asked: int, device: torch.device) -> int:
    """Return how many processes prepare batches where `asked` are asked for; fewer than none: as many as a GPU needs.

    A CPU that trains has no core to spare, so there it is none.
    """
    if asked >= 0:
        return asked
    if device.type == "cpu":
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // local - 1))


def machine(device: str = "cpu") -> str:
    """Return what the figures were measured on."""
    gpu = f", {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else ""
    return f"{host()} at the end{gpu}; torch {torch.__version__}, {torch.get_num_threads()} threads"
