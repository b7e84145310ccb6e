"""A layer of a pass starts few kernels, counted by the operations of torch that compute something.

Views start none; an operation that torch has a kernel of one piece for on a GPU counts as one, whatever it is made of
on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward_layers, prefill
from speculation.vlm.fused import PLAIN, Operations
from speculation.vlm.graphs import PassGraphs
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.speed import text_inputs
from tests.models import frame, tiny_model, tiny_text_model

LEAST = 9
"""Norm, queries with keys and values, rotation and storing, attention, output with its sum, norm, gate with up, their
product, down with its sum."""
OWN = {"rotate_and_store": 1, "attend": 2, "gate": 1}
"""Kernels of `speculation.vlm.kernels`; attention weighs what its parts have found in a second one."""
PLAIN_LAUNCHES = {
    "qwen2_vl": 20,
    "qwen2_5_vl": 20,
    "llama": 20,
    "mistral": 20,
    "qwen2": 20,
    "qwen3_vl": 22,
    "qwen3": 22,
}
"""By torch's own operations; heads that are normed take two more."""
FREE = ("aten::_unsafe_view", "aten::empty", "aten::empty_strided", "aten::new_empty", "aten::detach")
ONE_PIECE = ("rms_norm",)


class Launches(TorchDispatchMode):
    """Counts what computes something; `counts` False: nothing is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.counts = list[str](), True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if self.counts and name.startswith("aten::") and not func.is_view and name not in FREE:
            self.names.append(name)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def as_one(self, *names: str) -> Iterator[None]:
        """Count these instead of what is inside."""
        self.names += names
        self.counts = False
        yield
        self.counts = True


class OnePiece(TorchFunctionMode):
    """Counts what a GPU has one kernel for as one."""

    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ONE_PIECE and self._launches.counts:
            with self._launches.as_one(name):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def stand_ins(launches: Launches) -> Operations:
    """Return torch's operations, counted as the kernels that stand for them on a GPU."""

    def counted(name: str, work: Callable[..., Any], *given: Any) -> Any:
        with launches.as_one(*[name] * OWN[name]):
            return work(*given)

    return replace(PLAIN, **{name: partial(counted, name, getattr(PLAIN, name)) for name in OWN})


@pytest.mark.parametrize("family", PLAIN_LAUNCHES)
def test_a_layer_starts_few_kernels(family: str, tmp_path: Path) -> None:
    words = not family.endswith("vl")
    changes = {"attention_bias": False} if family == "llama" else {}
    folder = tiny_text_model(tmp_path, family=family, **changes) if words else tiny_model(tmp_path, family=family)
    vlm = load_vlm(folder, dtype="bfloat16", load_check=False)
    cache = KVCache(vlm, 2, 96)
    for row in range(2):
        prefill(vlm, cache, row, text_inputs(12) if words else prepare(vlm, "find the ball", frame(row)))
    launches = Launches()
    for operations, expected in ((PLAIN, PLAIN_LAUNCHES[family]), (stand_ins(launches), 10)):
        # One stretch holds layers 0 and 1, the other 2 and more: layers 0 and 1 differ by what all layers read.
        counts = []
        for last in range(2):
            graphs = PassGraphs(vlm, cache, [last])
            graphs._operations = operations
            chunks = [draft_chunk(cache, row, 3, [4, 5, 6], [-1, 0, 0]) for row in range(2)]
            graphs.capture(2, 4, 3)
            outputs = forward_layers(vlm, cache, chunks, graphs)
            launches.names.clear()
            with launches, OnePiece(launches), torch.no_grad():
                next(outputs)
            counts.append(len(launches.names))
            outputs.close()
        assert counts[1] - counts[0] == expected, launches.names
    assert expected <= 1.3 * LEAST
