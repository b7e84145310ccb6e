"""Dataclasses of tensors that move to a device as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

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
