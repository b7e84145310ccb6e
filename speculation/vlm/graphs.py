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

import torch
from torch import Tensor

from speculation.vlm.blocks import BLOCK, blocks_for
from speculation.vlm.cache import KVCache
from speculation.vlm.fused import NotFusable, Read, fuse, run_layer, unseen_slots
from speculation.vlm.model import Vlm
from speculation.vlm.plan import TreePlan

_log = logging.getLogger(__name__)

STEPS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows, and tokens a row, to which a forward is padded."""
BLOCK_STEP = 16
"""Blocks a row are a multiple of this many."""
MOST_TOKENS = 256
"""Of a forward that is captured. More tokens take long enough for their kernels to be started one by one."""
MOST_GRAPHS = 64
"""Shapes that are kept; the one that was used least recently goes first."""


def next_step(count: int) -> int:
    """Return the smallest of STEPS that holds so many; as many where none does."""
    return next((step for step in STEPS if step >= count), count)


@dataclass
class Graph:
    """One shape's forward: what it reads, and its stretches."""

    host: Tensor
    """What a pass reads besides weights and cache, in page-locked memory, bytes; `given` are views of it."""
    device: Tensor
    given: dict[str, Tensor]
    read: dict[str, Tensor]
    """Views of `device`, as `given` are of `host`."""
    copied: Any = None
    """The event after the last copy: before it, `host` must not be written."""
    stretches: list[tuple[int, Callable[[], object], Tensor]] = field(default_factory=list)
    """The last layer of a stretch, what runs it, and what that layer then has made [B, width, hidden]."""


class PassGraphs:
    """The captured forwards of one model over one cache, for whoever reads what the layers `ends` have made.

    On a CPU nothing is captured, and the same functions run one by one, which is what tests compare. Raises NotFusable
    for a decoder with other layers, or one on several devices.
    """

    def __init__(self, vlm: Vlm, cache: KVCache, ends: Sequence[int]) -> None:
        if len(vlm.devices) > 1:
            raise NotFusable("it is on several devices")
        self._vlm, self._cache = vlm, cache
        self._ends = sorted({*ends, vlm.num_layers - 1})
        self._layers = fuse(vlm)
        self._kv = [cache.layer(index) for index in range(vlm.num_layers)]
        self._graphs: OrderedDict[tuple[int, ...], Graph] = OrderedDict()
        self._pool: Any = None

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
        _fill(graph, plan, tokens)
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
        graph = _buffers(self._vlm, rows, width, blocks, scratch)
        # What the first runs write, nobody reads.
        graph.read["slots"].fill_(self._cache.blocks * BLOCK)
        graph.read["lengths"].fill_(1)
        first, hidden = 0, torch.empty(0)
        for end in self._ends:
            run = partial(self._stretch, graph.read, first, end, hidden)
            if self._vlm.device.type == "cuda":
                hidden, replay = self._captured(run)
            else:
                hidden = run()
                replay = partial(_into, hidden, run)
            graph.stretches.append((end, replay, hidden.view(rows, width, -1)))
            first = end + 1
        return graph

    def _captured(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        make: Any = torch.cuda.Stream
        stream = make()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # lets the libraries choose their kernels
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            hidden = run()
        self._pool = self._pool or graph.pool()
        return hidden, graph.replay

    def _stretch(self, read: dict[str, Tensor], first: int, end: int, hidden: Tensor) -> Tensor:
        """Run layers `first` to `end` and return what the last has made [B width, hidden]."""
        if not first:
            text, places = self._vlm.text, read["positions"]
            hidden = text.embed_tokens(read["ids"])
            cos, sin = self._vlm.rotary(hidden, places)
            read["cos"], read["sin"] = (each.reshape(-1, each.shape[-1]) for each in (cos, sin))
            read["unseen"] = unseen_slots(read["lengths"], read["tree"], read["blocks"].shape[1] * BLOCK)
            hidden = hidden.flatten(0, 1)
        known = Read(read["slots"].flatten(), *(read[name] for name in ("blocks", "unseen", "cos", "sin")))
        for layer, kv in zip(self._layers[first : end + 1], self._kv[first : end + 1], strict=True):
            hidden = run_layer(layer, hidden, kv, known)
        return hidden


def graphs_of(vlm: Vlm, cache: KVCache, ends: Sequence[int]) -> PassGraphs | None:
    """Return captured forwards where the model is on one GPU and its layers are known.

    One is captured to see that it can be. None, with a line in the log that says why, where it cannot.
    """
    if vlm.device.type != "cuda":
        return None
    try:
        graphs = PassGraphs(vlm, cache, ends)
        graphs.capture(1, 1, 1)
    except Exception as error:  # CUDA raises many types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        _log.warning("passes of %s are not captured as CUDA graphs, they take longer: %s", vlm.name, reason)
        return None
    return graphs


def _buffers(vlm: Vlm, rows: int, width: int, blocks: int, scratch: int) -> Graph:
    """Return what a shape's passes read, on the host and on the device, each in one piece."""
    parts: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "ids": ((rows, width), torch.int64),
        "slots": ((rows, width), torch.int64),
        "positions": ((3, rows, width), torch.int64),
        "blocks": ((rows, blocks), torch.int64),
        "lengths": ((rows,), torch.int64),
        "tree": ((rows, width, scratch), torch.bool),
    }
    sizes = {name: torch.Size(shape).numel() * dtype.itemsize for name, (shape, dtype) in parts.items()}
    host = torch.zeros(sum(sizes.values()), dtype=torch.uint8, pin_memory=vlm.device.type == "cuda")
    device = torch.zeros_like(host, device=vlm.device)

    def views(whole: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(whole, list(sizes.values()))
        return {name: piece.view(dtype).view(shape)
                for piece, (name, (shape, dtype)) in zip(pieces, parts.items(), strict=True)}  # fmt: skip

    return Graph(host, device, views(host), views(device))


def _fill(graph: Graph, plan: TreePlan, tokens: Sequence[Sequence[int]]) -> None:
    if graph.copied is not None:
        graph.copied.synchronize()
    given = {name: view.numpy() for name, view in graph.given.items()}
    for name in ("slots", "positions", "blocks", "lengths", "tree"):
        given[name][...] = getattr(plan, name)
    given["ids"].fill(0)
    for row, each in enumerate(tokens):
        given["ids"][row, : len(each)] = each
    graph.device.copy_(graph.host, non_blocking=True)
    if graph.device.device.type == "cuda":
        event: Any = torch.cuda.Event
        graph.copied = event()
        graph.copied.record()


def _into(kept: Tensor, run: Callable[[], Tensor]) -> None:
    kept.copy_(run())
