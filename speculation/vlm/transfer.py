"""What goes up to a device before a pass and comes down from it, so that nobody waits for the other in between (torch).

A GPU works on what it was given while the host prepares more. Whoever reads a number of it, or copies to it out of
ordinary memory, waits until it has done all that; then it waits in turn. So what a pass needs goes up in one copy, out
of page-locked memory, and what comes of it goes down on a stream of its own. On a CPU nothing is copied at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
ALIGNED = 16
"""Bytes at whose multiples the parts of a copy begin, so that any dtype can be read there."""


def upload(parts: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """Return arrays on a device, in one copy that nobody waits for; on a CPU they share their memory."""
    if device.type == "cpu":
        return {name: torch.from_numpy(part) for name, part in parts.items()}
    return views(pack(parts, device).to(device, non_blocking=True), parts)


def pack(parts: Mapping[str, Array], device: torch.device) -> Tensor:
    """Return arrays one behind the other as bytes, in memory of the host that a copy to `device` is fast from."""
    host = _host_memory((sum(_room(part) for part in parts.values()),), torch.uint8, device)
    for name, view in views(host, parts).items():
        view.numpy()[...] = parts[name]
    return host


def views(whole: Tensor, parts: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return the parts of what `pack` has made, as tensors of the arrays' shapes; of the arrays no number is read."""
    found, start = {}, 0
    for name, part in parts.items():
        dtype = torch.from_numpy(np.empty(0, part.dtype)).dtype
        found[name] = whole[start : start + part.nbytes].view(dtype).view(part.shape)
        start += _room(part)
    return found


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Let a GPU run what is inside on a stream of its own: behind all that it was given so far, beside all later."""
    if device.type != "cuda":
        yield
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


class Download:
    """A tensor on its way to the host: the copy is queued on the stream that is current, and whoever reads it waits."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: Any = None
        self._host = tensor
        if tensor.device.type != "cpu":
            self._host = _host_memory(tensor.shape, tensor.dtype, tensor.device)
            self._host.copy_(tensor, non_blocking=True)
        if tensor.device.type == "cuda":
            make: Any = torch.cuda.Event
            self._event = make()
            self._event.record(torch.cuda.current_stream(tensor.device))

    @property
    def is_ready(self) -> bool:
        """Whether reading it waits for nothing."""
        return self._event is None or bool(self._event.query())

    def numpy(self) -> Array:
        """Return the numbers, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        array: Array = self._host.numpy()
        return array


def _room(part: Array) -> int:
    return -(-part.nbytes // ALIGNED) * ALIGNED


def _host_memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory of the host, page-locked for a GPU: torch keeps it from others until its copies are done."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


@functools.cache
def _side_stream(device: torch.device) -> Any:
    make: Any = torch.cuda.Stream
    return make(device)
