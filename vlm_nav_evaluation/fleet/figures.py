"""Figures of a fleet in its steady state, and its capacity: how many robots keep their promise of speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import numpy as np

from speculation.service_classes import SERVICE_CLASSES
from vlm_nav_evaluation.fleet.fleet import Asked, Fleet, Log
from vlm_nav_evaluation.fleet.systems import Setting

_STRIDE = 0.15
"""Share by which a search for the capacity first leaves its guess."""


@dataclass(frozen=True)
class Window:
    """Holds between which times a run is measured, in seconds from its start."""

    begin: float = 20.0
    end: float = 60.0


@dataclass(frozen=True)
class Figures:
    """What a fleet did. Shares are of requests that began within the window."""

    robots: int
    requests: int
    violations: float
    """Share of requests whose end-to-end token speed was below their class."""
    by_class: dict[str, float]
    """Share of late requests of each class that was there."""
    goodput: float
    """Committed tokens a second within the window."""
    tokens_per_pass: float
    """tau: tokens per verified row."""
    tokens_spread: float
    """Its standard deviation."""
    busy: float
    """Share of the time in which the verifier worked."""
    rows: float
    """Mean rows of a pass."""
    pass_s: float
    """Mean seconds of a batch."""
    queue_s: float
    """Mean wait of a row."""
    deciding_us: float
    """Median microseconds of this machine's processor that the scheduler took for a batch."""


def run(
    setting: Setting,
    robots: int,
    seed: int = 0,
    window: Window | None = None,
    judged: bool = True,
    enough: float = 1.0,
) -> Figures:
    """Run a fleet through the window and on, under the same load, until every request that began in it is decided.

    judged: whether violations are wanted; without them the run ends with the window. enough: it also ends once a larger
    share than this is late, and violations are then those so far, with the open ones as kept.
    """
    window = window or Window()
    fleet = Fleet(setting, robots, seed)
    fleet.timeline.advance(window.end)
    begun = [asked for asked in fleet.log.asked if window.begin <= asked.begun < window.end]
    limit = window.end
    if judged and begun:
        limit = max(asked.begun + asked.tokens / SERVICE_CLASSES[asked.service_class].tokens_per_s for asked in begun)
        opened, asked_at = deque(begun), window.end

        def open_still() -> bool:
            nonlocal asked_at
            now = fleet.timeline.now
            while opened and opened[0].late(now) is not None:
                opened.popleft()
            if enough < 1.0 and now > asked_at + 1.0:
                asked_at = now
                if sum(asked.late(now) is True for asked in begun) > enough * len(begun):
                    return False
            return bool(opened)

        fleet.timeline.advance(limit + 1e-6, open_still)
    return figures_of(fleet.log, robots, window, begun, fleet.timeline.now)


def figures_of(log: Log, robots: int, window: Window, begun: list[Asked], now: float) -> Figures:
    """Return the figures of a run; `begun` are the requests that count."""
    classes = {name: [asked for asked in begun if asked.service_class == name] for name in SERVICE_CLASSES}
    late = {name: [bool(asked.late(now)) for asked in group] for name, group in classes.items() if group}
    within = [each for each in log.verified if window.begin <= each.ended < window.end]
    passes = [each for each in log.passes if window.begin <= each.ended < window.end]
    committed = sum(each.committed for each in within)
    return Figures(
        robots=robots,
        requests=len(begun),
        violations=_mean([each for group in late.values() for each in group]),
        by_class={name: _mean(group) for name, group in late.items()},
        goodput=committed / (window.end - window.begin),
        tokens_per_pass=committed / len(within) if within else 0.0,
        tokens_spread=float(np.std([each.committed for each in within])) if within else 0.0,
        busy=sum(each.seconds for each in passes) / (window.end - window.begin),
        rows=_mean([each.rows for each in passes]),
        pass_s=_mean([each.seconds for each in passes]),
        queue_s=_mean([each.queue_s for each in within]),
        deciding_us=1e6 * float(np.median(log.deciding_s)) if log.deciding_s else 0.0,
    )


def capacity(
    violations: Callable[[int], float], allowed: float, most: int = 1024, guess: int = 32, near: float = 0.0
) -> int:
    """Return the largest number of robots, up to `most`, with a share of violations of at most `allowed`; 0 for none.

    WISP, Eq. 20. violations: the share at a number of robots, taken to grow with it; it is asked at few numbers: the
    search leaves `guess` in strides that double, then bisects, until it is within a share `near` below the exact
    number.
    """
    low, high = 0, most + 1
    here, stride = min(max(1, guess), most), _STRIDE
    while high - low > max(1.0, near * low if high <= most else 1.0):
        if violations(here) <= allowed:
            low = here
        else:
            high = here
        if low and high <= most:
            here = (low + high) // 2
        elif low:
            here, stride = min(most, math.ceil((1.0 + stride) * here)), 2.0 * stride
        else:
            here, stride = max(1, math.floor(here / (1.0 + stride))), 2.0 * stride
    return low


def _mean(values: list[float] | list[bool] | list[int]) -> float:
    return float(mean(values)) if values else 0.0
