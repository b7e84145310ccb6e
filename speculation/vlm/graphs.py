"""Small forwards as captured CUDA graphs: one for each stretch of layers up to one that somebody reads, and each shape.

A verification of a few tokens reads all weights once; starting its kernels one by one takes longer than that. A graph
starts them all in one call, but for one shape and one place of everything that it reads. So shapes are few (`STEPS`),
and what a pass reads besides weights and cache goes up in one copy, out of page-locked memory.

Prompts, forwards of many tokens and decoders with other layers than those of `speculation.vlm.fused` run as ever.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculation.text import first_line
from speculation.vlm.blocks import BLOCK, blocks_for
from speculation.vlm.cache import KVCache
from speculation.vlm.fused import PLAIN, FusedLayer, NotFusable, Operations, Read, fuse, run_layer
from speculation.vlm.model import Vlm
from speculation.vlm.plan import TreePlan
from speculation.vlm.transfer import beside, pack, views

_log = logging.getLogger(__name__)

STEPS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows, and tokens a row, to which a forward is padded."""
BLOCK_STEP = 16
"""Blocks a row are a multiple of this many."""
MOST_TOKENS = 256
"""Of a forward that is captured. More tokens take long enough for their kernels to be started one by one."""
MOST_GRAPHS = 64
"""Shapes that are kept; the one that was used least recently goes first."""


TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
"""How far a layer's output by own kernels may be from that by torch's operations, of its largest number."""


def next_step(count: int) -> int:
    """Return the smallest of STEPS that holds so many; as many where none does."""
    return next((step for step in STEPS if step >= count), count)


@dataclass
class Graph:
    """One shape's forward: what it reads, and its stretches."""

    device: Tensor
    """What a pass reads besides weights and cache, bytes; `given` are views of it."""
    given: dict[str, Tensor]
    read: Read | None = None
    """What all layers read, once the first stretch has run."""
    stretches: list[tuple[int, Callable[[], object], Tensor]] = field(default_factory=list)
    """The last layer of a stretch, what runs it, and what that layer then has made [B, width, hidden]."""


class PassGraphs:
    """The captured forwards of one model over one cache, for whoever reads what the layers `ends` have made.

    On a CPU nothing is captured, and the same functions run one by one, which is what tests compare. So they do on a
    GPU from the first capture on that fails, as where memory is short. Raises NotFusable for a decoder with other
    layers, or one on several devices.
    """

    def __init__(self, vlm: Vlm, cache: KVCache, ends: Sequence[int]) -> None:
        if len(vlm.devices) > 1:
            raise NotFusable("it is on several devices")
        self._vlm, self._cache = vlm, cache
        self._ends = sorted({*ends, vlm.num_layers - 1})
        self._layers = fuse(vlm)
        self._operations = operations_for(vlm, self._layers[0])
        self._kv = cache.layers
        self._graphs: OrderedDict[tuple[int, ...], Graph] = OrderedDict()
        self._pool: Any = None
        self._captures = vlm.device.type == "cuda"

    def takes(self, counts: Sequence[int]) -> bool:
        """Whether rows that feed so many tokens make a forward that is captured."""
        return next_step(len(counts)) * next_step(max(counts)) <= MOST_TOKENS

    def pad(self, rows: int, width: int, blocks: int, scratch: int) -> tuple[int, int, int, int]:
        """Return the shape that a forward of this one is padded to; see `KVCache.plan_trees`."""
        most = max(blocks, blocks_for(self._cache.capacity))
        padded = min(-(-blocks // BLOCK_STEP) * BLOCK_STEP, most)
        return next_step(rows), next_step(width), padded, next_step(scratch)

    @torch.no_grad()
    def layers(self, plan: TreePlan, tokens: Sequence[Sequence[int]]) -> Iterator[tuple[int, Tensor]]:
        """Run a plan that was padded by `pad`; yield each of `ends` with what its layer has made [B, width, hidden].

        What is yielded is overwritten by the next forward of the same shape.
        """
        graph = self._graph(*plan.slots.shape, plan.blocks.shape[1], plan.tree.shape[2])
        ids = np.zeros_like(plan.slots)
        for row, each in enumerate(tokens):
            ids[row, : len(each)] = each
        parts = {"ids": ids, **{name: getattr(plan, name) for name in graph.given if name != "ids"}}
        graph.device.copy_(pack(parts, self._vlm.device), non_blocking=True)
        for layer, run, hidden in graph.stretches:
            run()
            yield layer, hidden

    def capture(self, rows: int, width: int, blocks: int) -> None:
        """Capture the shape that a forward of this one is padded to, where it was not yet."""
        self._graph(*self.pad(rows, width, blocks, width))

    def _graph(self, *key: int) -> Graph:
        graph = self._graphs.get(key)
        if graph is None:
            while len(self._graphs) >= MOST_GRAPHS:
                self._graphs.popitem(last=False)
            graph = self._graphs[key] = self._made(*key)
        self._graphs.move_to_end(key)
        return graph

    @torch.no_grad()
    def _made(self, rows: int, width: int, blocks: int, scratch: int) -> Graph:
        graph = self._buffers(rows, width, blocks, scratch)
        first, hidden = 0, torch.empty(0)
        for end in self._ends:
            run = partial(self._stretch, graph, first, end, hidden)
            hidden, replay = self._captured(run) or _kept(run)
            graph.stretches.append((end, replay, hidden.view(rows, width, -1)))
            first = end + 1
        return graph

    def _buffers(self, rows: int, width: int, blocks: int, scratch: int) -> Graph:
        parts = {
            "ids": np.zeros((rows, width), dtype=np.int64),
            # What the first runs write, nobody reads.
            "slots": np.full((rows, width), self._cache.blocks * BLOCK),
            "positions": np.zeros((3, rows, width), dtype=np.int64),
            "blocks": np.zeros((rows, blocks), dtype=np.int64),
            "lengths": np.ones(rows, dtype=np.int64),
            "tree": np.zeros((rows, width, scratch), dtype=np.bool_),
        }
        device = pack(parts, self._vlm.device).to(self._vlm.device)
        return Graph(device, views(device, parts))

    def _captured(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]] | None:
        """Return what a stretch makes, and what runs it once more; None where it is not captured."""
        if not self._captures:
            return None
        try:
            return self._capture(run)
        except Exception as error:  # CUDA raises many types
            self._captures = False
            _log.warning(
                "passes of %s are not captured as CUDA graphs any more, they take longer: %s",
                self._vlm.name, first_line(error),
            )  # fmt: skip
            return None

    def _capture(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        with beside(self._vlm.device):
            run()  # lets the libraries choose their kernels
        torch.cuda.synchronize(self._vlm.device)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._vlm.device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            hidden = run()
        self._pool = self._pool or graph.pool()
        return hidden, graph.replay

    @torch.no_grad()
    def _stretch(self, graph: Graph, first: int, end: int, before: Tensor) -> Tensor:
        """Run layers `first` to `end` on what those before have made; return what the last makes [B width, hidden]."""
        hidden: Tensor
        if not first:
            given, text = graph.given, self._vlm.text
            embeds = text.embed_tokens(given["ids"])
            rotary = self._vlm.rotary(embeds, given["positions"])
            graph.read = Read.of(given, rotary, biased=self._operations.reads_bias)
            hidden = embeds.flatten(0, 1)
        else:
            hidden = before.clone()  # an exit may still read it
        assert graph.read is not None, "the first stretch runs first"
        with _current(hidden):
            for layer, kv in zip(self._layers[first : end + 1], self._kv[first : end + 1], strict=True):
                hidden = run_layer(layer, hidden, kv, graph.read, self._operations)
        return hidden


def graphs_of(vlm: Vlm, cache: KVCache, ends: Sequence[int]) -> PassGraphs | None:
    """Return captured forwards where the model is on one GPU and its layers are known.

    None, with a line in the log that says why, where it cannot.
    """
    if vlm.device.type != "cuda":
        return None
    try:
        graphs = PassGraphs(vlm, cache, ends)
    except NotFusable as error:
        _log.warning("passes of %s are not captured as CUDA graphs, they take longer: %s", vlm.name, error)
        return None
    graphs.capture(1, 1, 1)
    return graphs


def operations_for(vlm: Vlm, layer: FusedLayer) -> Operations:
    """Return the kernels of `speculation.vlm.kernels` on a GPU, where a layer comes out by them as by `PLAIN`.

    Else those, with a line in the log that says why. The kernels know no float64.
    """
    if vlm.device.type != "cuda" or vlm.dtype == torch.float64:
        return PLAIN
    try:
        from speculation.vlm.kernels import KERNELS  # late: torch brings Triton for GPUs alone

        error = difference(vlm, layer, KERNELS)
        if error <= TOLERANCE[vlm.dtype]:
            return KERNELS
        reason = f"they are {error:.1g} away from torch's operations"
    except Exception as failure:  # compilers raise many types
        reason = first_line(failure)
    _log.warning("passes of %s use no kernels of their own, they take longer: %s", vlm.name, reason)
    return PLAIN


@torch.no_grad()
def difference(vlm: Vlm, layer: FusedLayer, operations: Operations) -> float:
    """Return how far a layer's output is from that by torch's operations, on random numbers, of its largest number."""
    rows, width, blocks = 2, 3, 10
    dice = torch.Generator(vlm.device).manual_seed(0)
    normal = partial(torch.randn, generator=dice, device=vlm.device, dtype=vlm.dtype)
    hidden = normal((rows * width, vlm.hidden_size))
    kv = normal((2, vlm.kv_heads, rows * blocks * BLOCK, vlm.head_dim))
    given = {
        "slots": torch.arange(rows * width, device=vlm.device) * 7,
        "blocks": torch.arange(rows * blocks, device=vlm.device).view(rows, blocks).flip(1),
        "lengths": torch.tensor([5, blocks * BLOCK - width], device=vlm.device),
        "tree": torch.eye(width, dtype=torch.bool, device=vlm.device).repeat(rows, 1, 1),
    }
    positions = torch.arange(rows * width, device=vlm.device).view(1, rows, width).expand(3, -1, -1)
    read = Read.of(given, vlm.rotary(hidden.view(rows, width, -1), positions))
    found = []
    with _current(hidden):
        for each in (PLAIN, operations):
            pool = kv.clone()
            found.append((run_layer(layer, hidden.clone(), pool, read, each), pool))
    away = [(own - other).abs().max() / own.abs().max() for own, other in zip(*found, strict=True)]
    return float(torch.stack(away).amax())  # which is NaN where one is


def _current(tensor: Tensor) -> Any:
    """Return a context in which a tensor's GPU is the current one: own kernels run on whatever is."""
    context: Any = torch.cuda.device_of
    return context(tensor)


def _kept(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
    """Return what a stretch makes, and what makes it once more in the same place."""
    kept = run()
    return kept, lambda: kept.copy_(run())
