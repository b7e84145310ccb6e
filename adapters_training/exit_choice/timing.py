"""How long a verification takes here, layer by layer, and what each exit adds to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import torch

from speculation.exits import ExitHeads, Head
from speculation.sampling import Greedy
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, draft_chunk, final_logits, forward_layers, to_numpy
from speculation.vlm.load import Vlm
from speculation.vlm.speed import synchronise
from speculation.wire import ROOT

WARM_UP = 3


class Clock(str, Enum):
    """Which seconds are counted: those `wall` clocks show, or those that the `processor` really worked.

    One thread on a CPU is timed by the processor's, which other programs on the machine hardly change; on an idle
    machine both are the same.
    """

    WALL = "wall"
    PROCESSOR = "processor"


def clock_of(vlm: Vlm) -> Clock:
    """Return the clock that forwards of this model are timed by."""
    alone = vlm.device.type == "cpu" and torch.get_num_threads() == 1
    return Clock.PROCESSOR if alone else Clock.WALL


@dataclass(frozen=True)
class PassTimes:
    """Seconds of R forwards: `layers` float64 [R, num_layers], `head` [R] the final norm, head, copy and verdict, and
    `exits` by head and layer [R], each an adapter, norm, head, copy and verdict."""

    clock: Clock
    layers: npt.NDArray[np.float64]
    head: npt.NDArray[np.float64]
    exits: dict[Head, dict[int, npt.NDArray[np.float64]]]

    @property
    def forward(self) -> npt.NDArray[np.float64]:
        """Seconds of every forward without exits [R]."""
        total: npt.NDArray[np.float64] = self.layers.sum(axis=1) + self.head
        return total

    def medians(self) -> tuple[tuple[float, ...], float]:
        """Return the median seconds of every layer, and of the head."""
        return tuple(np.median(self.layers, axis=0).tolist()), float(np.median(self.head))

    def lead_s(self, layer: int) -> float:
        """Return how long before the final verdict a layer's output is there: the median of what comes after it."""
        return float(np.median(self.layers[:, layer + 1 :].sum(axis=1) + self.head))

    def cost_s(self, head: Head, layer: int) -> float:
        """Return the median seconds that the exit at `layer` adds. Raises KeyError for one that was not timed."""
        return float(np.median(self.exits[head][layer]))


@torch.no_grad()
def time_forward(
    vlm: Vlm, heads: ExitHeads | None = None, *, drafted: int = 4, context: int = 128, repeats: int = 30, seed: int = 0
) -> PassTimes:
    """Time forwards over a root and `drafted` tokens behind `context` others (random ones; the work is the same).

    Exits are timed in the same forwards, with the full head and with the short list where they have one, so that
    whatever else the machine does falls on both. A few forwards before the first are not counted.
    """
    rng = np.random.default_rng(seed)
    cache = _filled(vlm, context, context + drafted + 1, rng)
    tokens = [int(token) for token in rng.integers(0, vlm.vocabulary, drafted + 1)]
    timed = _Pass(vlm, cache, tokens, heads)
    runs = [timed.run() for _ in range(WARM_UP + repeats)][WARM_UP:]
    kinds = timed.kinds
    layers = heads.layers if heads is not None else ()
    exits = {head: {layer: np.array([run.exits[head, layer] for run in runs]) for layer in layers} for head in kinds}
    return PassTimes(timed.clock, np.array([run.layers for run in runs]), np.array([run.head for run in runs]), exits)


@dataclass(frozen=True)
class _Run:
    layers: list[float]
    head: float
    exits: dict[tuple[Head, int], float]


class _Pass:
    """One forward, again and again."""

    def __init__(self, vlm: Vlm, cache: KVCache, tokens: Sequence[int], heads: ExitHeads | None) -> None:
        self._vlm, self._cache, self._tokens, self._heads = vlm, cache, tokens, heads
        self._rule = Greedy()
        self.clock = clock_of(vlm)
        self.kinds = [Head.FULL] if heads is not None else []
        if heads is not None and heads.short_list is not None:
            self.kinds.append(Head.SHORT)

    def run(self) -> _Run:
        cache, drafted = self._cache, self._tokens[1:]
        parents = range(ROOT, len(drafted) - 1)
        chunk = draft_chunk(cache, 0, self._tokens[0], drafted, parents)
        layers: list[float] = []
        exits: dict[tuple[Head, int], float] = {}
        hidden = torch.empty(0)
        started = self._now()
        for output in forward_layers(self._vlm, cache, [chunk]):
            layers.append(self._now() - started)
            hidden = output.hidden[0]
            if self._heads is not None and output.layer in self._heads.layers:
                for head in self.kinds:
                    begun = self._now()
                    logits = to_numpy(self._heads.logits(output.layer, hidden, head))
                    self._heads.judge(self._rule, drafted, parents, logits, head)
                    exits[head, output.layer] = self._now() - begun
            started = self._now()
        self._rule.judge(drafted, parents, to_numpy(final_logits(self._vlm, hidden)))
        head_s = self._now() - started
        cache.truncate(0, cache.length[0])
        return _Run(layers, head_s, exits)

    def _now(self) -> float:
        # A GPU works on after a call returns; what is timed must be done.
        synchronise(*self._vlm.devices)
        return time.thread_time() if self.clock is Clock.PROCESSOR else time.perf_counter()


def _filled(vlm: Vlm, context: int, capacity: int, rng: np.random.Generator) -> KVCache:
    cache = KVCache(vlm, 1, capacity)
    tokens = [int(token) for token in rng.integers(0, vlm.vocabulary, context)]
    if tokens:
        for _ in forward_layers(vlm, cache, [Chunk(0, tokens, cache.chain(0, context))]):
            pass
        cache.keep(0, range(context))
    return cache
