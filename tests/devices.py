"""Several devices on a machine that has none: `lazy:0`, `lazy:1`, ... compute on the CPU and take no others' tensors.

The kind is one that torch knows, and that does nothing until somebody starts its compiler. Here a tensor of it is a
wrapper around one of the CPU, which the wrapper alone can reach: each operation of torch (below autograd, so also
those that other operations are made of) computes on what is wrapped, after a look at where its tensors are. Of several
devices, or of one and the CPU, it is refused, as a GPU refuses it; copies alone go from one to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

KIND = "lazy"
COPIES = ("aten::_to_copy", "aten::copy_")
MATH = 0
"""Of torch's backends of attention: matrix products and a softmax, which are operations of their own."""
copies: list[tuple[torch.device, torch.device]] = []
"""From where to where tensors were copied, the oldest first."""


class WrongDevice(RuntimeError):
    """An operation was given tensors of several devices."""


class Placed(Tensor):
    """A tensor of one of the devices; `held` is where its numbers are."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> Placed:
        made: Placed = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=device, requires_grad=False,
        )  # fmt: skip
        return made

    def __init__(self, held: Tensor, device: torch.device) -> None:
        self.held = held

    def tolist(self) -> Any:
        """Return the numbers; torch itself has this for its own tensors alone."""
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        """Return where the numbers are, by which accelerate tells weights apart; torch has no address for wrappers."""
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, dict(kwargs or {}))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    # A GPU takes lone numbers of the CPU, too, and numbers of rows or columns.
    own = tree_leaves(args[:1]) if name.startswith("aten::index") else given
    places = list(dict.fromkeys(each.device for each in own if isinstance(each, Placed) or each.dim()))
    if len(places) > 1 and name not in COPIES:
        raise WrongDevice(f"{name} was given tensors of {' and '.join(map(str, places))}")
    if name == "aten::_fused_sdp_choice":
        return MATH
    asked = kwargs.pop("device", None)
    device = places[0] if asked is None else torch.device(asked)
    if name in COPIES and {*places, device} != {device}:
        copies.append((places[-1], device))
    args, kwargs = tree_map_only(Placed, lambda each: each.held, (args, kwargs))
    # A GPU counts integers, too.
    counts = name == "aten::histc" and not args[0].is_floating_point()
    found = func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype) if counts else func(*args, **kwargs)
    assert all(each.shape == each.held.shape for each in given if isinstance(each, Placed)), f"{name} resizes"
    if device.type != KIND:
        return found
    same = {id(each.held): each for each in given if isinstance(each, Placed)}
    return tree_map_only(Tensor, lambda each: same[id(each)] if id(each) in same else Placed(each, device), found)


def _made(make: Callable[..., Tensor], *sizes: Any, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return Placed(make(*sizes, dtype=dtype), torch.device(KIND, device.index or 0))


def _copied(source: Tensor, target: Placed, non_blocking: bool = False) -> Tensor:
    target.held.copy_(source)
    return target


def attach() -> None:
    """Let a process have the devices: who is to call this imports the module, which is all it takes."""


# What makes tensors of nothing; other such operations of torch fill these.
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", lambda *sizes, **how: _made(torch.empty, *sizes, **how), KIND.capitalize())
_library.impl("empty_strided", lambda *sizes, **how: _made(torch.empty_strided, *sizes, **how), KIND.capitalize())
for _form in ("arange", "arange.start", "arange.start_step"):
    _library.impl(_form, lambda *sizes, **how: _made(torch.arange, *sizes, **how), KIND.capitalize())
_library.impl("_copy_from", _copied, KIND.capitalize())
