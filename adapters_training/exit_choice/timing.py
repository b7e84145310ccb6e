"""How long a verification takes here, layer by layer, and what each exit adds to it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import torch

from speculation.exits import ExitHeads, Head
from speculation.sampling import Greedy
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, draft_chunk, final_logits, forward_layers, to_numpy
from speculation.vlm.model import Vlm
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


class Timer:
    """Tells the time of the clock by which forwards of a model are timed, once its devices are done."""

    def __init__(self, vlm: Vlm) -> None:
        # One thread on a CPU is timed by the processor's clock.
        alone = vlm.device.type == "cpu" and torch.get_num_threads() == 1
        self.clock = Clock.PROCESSOR if alone else Clock.WALL
        self._devices = vlm.devices

    def now(self) -> float:
        """Return the time, seconds."""
        # A GPU works on after a call returns; what is timed must be done.
        synchronise(*self._devices)
        return time.thread_time() if self.clock is Clock.PROCESSOR else time.perf_counter()


@torch.no_grad()
def time_forward(
    vlm: Vlm, heads: ExitHeads | None = None, *, drafted: int = 4, context: int = 128, repeats: int = 30
) -> PassTimes:
    """Time forwards over a root and `drafted` tokens behind `context` others (random ones; the work is the same).

    Exits are timed in the same forwards, with the full head and with the short list where they have one, so that
    whatever else the machine does falls on both. A few forwards before the first are not counted.
    """
    rng = np.random.default_rng(0)
    cache = _filled(vlm, context, context + drafted + 1, rng)
    root, *tokens = (int(token) for token in rng.integers(0, vlm.vocabulary, drafted + 1))
    parents, rule, timer, runs = range(ROOT, len(tokens) - 1), Greedy(), Timer(vlm), WARM_UP + repeats
    kinds = [] if heads is None else [Head.FULL, *([Head.SHORT] if heads.short_list is not None else [])]
    layers, head_s = np.zeros((runs, vlm.num_layers)), np.zeros(runs)
    exits = {kind: {layer: np.zeros(runs) for layer in heads.layers} for kind in kinds} if heads else {}
    for run in range(runs):
        hidden = torch.empty(0)
        chunk = draft_chunk(cache, 0, root, tokens, parents)
        started = timer.now()
        for output in forward_layers(vlm, cache, [chunk]):
            layers[run, output.layer] = timer.now() - started
            hidden = output.hidden[0]
            if heads is not None and output.layer in heads.layers:
                for kind in kinds:
                    begun = timer.now()
                    heads.judge(rule, tokens, parents, to_numpy(heads.logits(output.layer, hidden, kind)), kind)
                    exits[kind][output.layer][run] = timer.now() - begun
            started = timer.now()
        rule.judge(tokens, parents, to_numpy(final_logits(vlm, hidden)))
        head_s[run] = timer.now() - started
        cache.truncate(0, cache.length[0])
    counted = {kind: {layer: each[WARM_UP:] for layer, each in found.items()} for kind, found in exits.items()}
    return PassTimes(timer.clock, layers[WARM_UP:], head_s[WARM_UP:], counted)


def _filled(vlm: Vlm, context: int, capacity: int, rng: np.random.Generator) -> KVCache:
    cache = KVCache(vlm, 1, capacity)
    tokens = [int(token) for token in rng.integers(0, vlm.vocabulary, context)]
    if tokens:
        for _ in forward_layers(vlm, cache, [Chunk(0, tokens, cache.chain(0, context))]):
            pass
        cache.keep(0, range(context))
    return cache
