"""From the first layer on to the logits, a pass never makes the host and a device wait for each other.

torch's `FakeTensorMode` has a fake `cuda`, but not in the build for CPUs that tests run on: it has no guard of CUDA
devices, so that not even a slice of a fake tensor can be taken. The devices of `tests.devices` compute besides, so the
verdicts of the very same passes are compared with those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cloud_verifier.engine import VlmEngine
from cloud_verifier.interfaces import LayerVerdicts, Row
from speculation.exits import ExitHeads, Head
from speculation.logits_processors import RepetitionPenalty
from speculation.sampling import GREEDY, Coupled, StepDraws
from speculation.vlm.graphs import PassGraphs
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.wire import ROOT
from tests.cloud_verifier.test_engine import jpeg
from tests.devices import KIND
from tests.models import FAMILIES, TEXT_FAMILIES, TILED, tiny_model, tiny_text_model

EXITS = (0, 1)
SEEING = [*FAMILIES, *TILED]
COPIES = ("aten::_to_copy", "aten::copy_")


class Watch(TorchDispatchMode):
    """Notes the operations that make somebody wait, and how many layers have computed their attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.layers = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given, name = dict(kwargs or {}), func._schema.name
        before = [each for each in tree_leaves((args, given)) if isinstance(each, Tensor)]
        result = func(*args, **given)
        if waits(func, before, [each for each in tree_leaves(result) if isinstance(each, Tensor)], args, given):
            self.found.append(f"{name} of {[(str(each.device), tuple(each.shape)) for each in before]}")
        self.layers += name.endswith("softmax")
        return result


def waits(func: Any, before: list[Tensor], after: list[Tensor], args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Return whether the host would wait for a GPU's numbers, or a GPU for ordinary memory of the host."""
    name = func._schema.name
    if all(each.device.type == "cpu" for each in (*before, *after)):
        return False
    if name.startswith("aten::index"):  # by a mask it would count what is true; the tag is there for that alone
        return any(each.dtype == torch.bool or each.device.type == "cpu" for each in before[1:])
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags):
        return True
    if name in COPIES and len({each.device.type for each in (*before, *after)}) > 1:
        lone = all(not each.dim() for each in before if each.device.type == "cpu")
        down = after[0].device.type == "cpu" and (given.get("non_blocking") or args[2:3] == (True,))
        return not down and not (lone and before[-1].device.type == "cpu")
    return False


@contextmanager
def watched(vlm: Vlm) -> Iterator[Watch]:
    """Watch what the model computes from the embedding of its tokens on."""
    watch = Watch()
    entered = list[bool]()

    def enter(*_: object) -> None:
        if not entered:
            entered.append(True)
            watch.__enter__()

    hook = vlm.text.embed_tokens.register_forward_hook(enter)
    try:
        yield watch
    finally:
        hook.remove()
        if entered:
            watch.__exit__(None, None, None)


def built(folder: Path, family: str) -> Path:
    if family in TEXT_FAMILIES:
        return tiny_text_model(folder, family=family, **({"attention_bias": False} if family == "llama" else {}))
    return tiny_model(folder, family=family, layers=3)


def engine_of(vlm: Vlm, head: Head, is_captured: bool) -> VlmEngine:
    torch.manual_seed(0)
    exits = ExitHeads(vlm, EXITS, rank=4)
    exits.set_short_list(range(vlm.vocabulary - 9) if head is Head.SHORT else None)
    exits.use(head)
    engine = VlmEngine(vlm, 2, 320, exits, 16)
    engine.draws_on_device = True
    if is_captured:
        engine._graphs = PassGraphs(vlm, engine._cache, EXITS)
    return engine


def passes(vlm: Vlm, engine: VlmEngine, run: Callable[[list[Row]], list[LayerVerdicts]]) -> list[list[LayerVerdicts]]:
    """Return the verdicts of a prefill in chunks, decodes beside its last one, a tree and a batch of several kinds."""
    penalty = RepetitionPenalty.of(1.1, [3, 4, 5], vlm.vocabulary)
    found = []
    for index in range(2):
        inputs = engine.prepare("find the silver bottle", jpeg(index) if vlm.sees_images else b"")
        left = engine.begin(index, inputs, (), 20)
        engine._penalties[index] = penalty if index == 1 else None
        if engine.image_tokens(inputs):
            engine.encode(index)
        beside = [Row(each, sampling=GREEDY) for each in range(index)]
        found.append(run([Row(index, chunk=left - 3)]))
        found.append(run([Row(index, chunk=3), *beside]))
    tree = ((5, 6, 7, 8), (ROOT, 0, 0, 2))
    found.append(run([Row(0, *tree, sampling=Coupled(1.0), draws=StepDraws(7, 1))]))
    found.append(run([Row(1, (5, 6), (ROOT, 0), sampling=Coupled(0.7, 5)), Row(0, *tree, exits=False)]))
    return found


@pytest.mark.parametrize(
    ("family", "is_captured"),
    [*((family, "moe" not in family) for family in (*SEEING, *TEXT_FAMILIES)), ("qwen2_vl", False)],
)
def test_nobody_waits_inside_a_pass(family: str, is_captured: bool, tmp_path: Path) -> None:
    folder = built(tmp_path, family)
    # In float64, which proofs alone run in, transformers looks for the experts of each token on the host.
    dtype = "float32" if "moe" in family else "float64"
    here, there = (load_vlm(folder, dtype=dtype, device=device, load_check=False) for device in ("cpu", f"{KIND}:0"))
    head = Head.SHORT if is_captured else Head.FULL
    engine = engine_of(there, head, is_captured)
    ahead = list[int]()

    def run(rows: list[Row]) -> list[LayerVerdicts]:
        verdicts = []
        with watched(there) as watch:
            for each in engine.verify(rows):
                if each.verdicts and each.layer in EXITS:
                    ahead.append(watch.layers - each.layer - 1)
                if each.verdicts:
                    verdicts.append(each)
        assert not watch.found
        return verdicts

    passes(there, engine, lambda rows: list(engine.verify(rows)))  # each shape is captured the first time
    for index in range(2):
        engine.release(index)
    found = passes(there, engine, run)
    plain = engine_of(here, head, is_captured=False)
    expected = passes(here, plain, lambda rows: [each for each in plain.verify(rows) if each.verdicts])
    assert [[(each.layer, paths(each)) for each in verdicts] for verdicts in found] == [
        [(each.layer, paths(each)) for each in verdicts] for verdicts in expected
    ]
    assert ahead and min(ahead) > 0, "the layers behind an exit run when its verdicts are read"


def paths(found: LayerVerdicts) -> dict[int, tuple[tuple[int, ...], int]]:
    return {index: (tuple(verdict.path), verdict.token) for index, verdict in found.verdicts.items()}
