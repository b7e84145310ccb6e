"""Dataclasses of tensors that move to a device as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound="TensorFields")


class TensorFields:
    """Base of a frozen dataclass whose fields are tensors, lists of them, others like it, and what stays as it is."""

    def to(self: T, device: torch.device) -> T:
        """Return it with its tensors on a device."""
        return self.changed(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self: T) -> T:
        """Return it in memory that a GPU copies from while it computes (a `DataLoader` calls this)."""
        return self.changed(Tensor.pin_memory)

    def changed(self: T, change: Callable[[Tensor], Tensor]) -> T:
        """Return it with all its tensors changed."""

        def apply(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, TensorFields):
                return value.changed(change)
            return [apply(each) for each in value] if isinstance(value, list) else value

        own: Any = self
        held = {each.name: apply(getattr(self, each.name)) for each in fields(own)}
        moved: T = replace(own, **held)
        return moved
