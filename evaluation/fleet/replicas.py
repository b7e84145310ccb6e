"""Up to 10,000 robots on many verifiers: where robots are placed, and how many replicas a promised speed needs.

Every replica has a scheduler of its own and they share nothing, so that a replica is a fleet by itself. Of the fleets
that a placement makes the fullest, the emptiest and some at random are simulated, and the rest are taken to be like
those that are nearest in size. A request's robot stays on its replica: its keys and values are there.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from evaluation.fleet.cells import run_cells
from evaluation.fleet.figures import Figures, Window, run
from evaluation.fleet.systems import Setting
from evaluation.fleet.wisp import CLASSES, QUICK, systems, times_of
from evaluation.fleet.workload import Workload
from evaluation.tables import Column, figures_table

REPLICAS = (1, 2, 4, 8, 16, 32, 64, 100)
PER_REPLICA = 100
POINTS = 64
"""Places of a replica on the ring."""
BOUND = 1.05
"""A replica takes at most so many times its mean share."""
SAMPLE = 4
"""Fleets that are simulated for each number of replicas, at most."""
ALLOWED = 0.05


def placed_by_hash(robots: int, replicas: int, bound: float | None = BOUND, seed: int = 0) -> list[int]:
    """Return the robots on each replica: consistent hashing, with bounded loads (Mirrokni et al., arXiv 1608.01350).

    A robot goes to the first replica clockwise of it that has room; `bound` None: to the first. Raises ValueError for a
    bound below 1, which has no room for all.
    """
    if bound is not None and bound < 1.0:
        raise ValueError(f"bound {bound} is below 1: not all robots find room")
    ring = sorted((_place(f"{seed} replica {replica} {point}"), replica)
                  for replica in range(replicas) for point in range(POINTS))  # fmt: skip
    places, loads = [place for place, _ in ring], [0] * replicas
    most = robots if bound is None else int(np.ceil(bound * robots / replicas))
    for robot in range(robots):
        at = bisect.bisect(places, _place(f"{seed} robot {robot}"))
        while loads[ring[at % len(ring)][1]] >= most:
            at += 1
        loads[ring[at % len(ring)][1]] += 1
    return loads


def placed_least_loaded(robots: int, replicas: int) -> list[int]:
    """Return the robots on each replica if each goes to the one with the fewest."""
    return [robots // replicas + (replica < robots % replicas) for replica in range(replicas)]


def _place(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


PLACEMENTS: dict[str, Callable[[int, int, int], list[int]]] = {
    "least loaded": lambda robots, replicas, seed: placed_least_loaded(robots, replicas),
    f"hash, bound {BOUND:g}": lambda robots, replicas, seed: placed_by_hash(robots, replicas, BOUND, seed),
    "hash": lambda robots, replicas, seed: placed_by_hash(robots, replicas, None, seed),
}


def sampled(loads: Sequence[int], seed: int = 0, most: int = SAMPLE) -> list[int]:
    """Return the sizes of the fleets that are simulated: fullest, emptiest and others at random, each size once."""
    sizes = sorted(set(loads) - {0})
    if len(sizes) <= most:
        return sizes
    between = np.random.default_rng([seed, 23]).choice(sizes[1:-1], most - 2, replace=False)
    return sorted({sizes[0], sizes[-1], *map(int, between)})


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --robots and --per-replica."""
    line.add_argument("--per-replica", type=int, default=PER_REPLICA, help="robots a replica, mean (%(default)s)")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return figures by placement and number of replicas. Raises ValueError for robots out of range."""
    if not 1 <= options.per_replica <= 256:
        raise ValueError(f"--per-replica {options.per_replica} is outside 1 to 256")
    window = Window(3.0, 6.0) if options.quick else Window(15.0, 35.0)
    numbers = (1, 8, 100) if options.quick else REPLICAS
    workload = replace(QUICK if options.quick else Workload(), seed=options.seed)
    setting = Setting(systems()["full_budget"], times_of("appendix C"), workload, CLASSES)
    loads = {
        (placement, replicas): place(options.per_replica * replicas, replicas, options.seed)
        for placement, place in PLACEMENTS.items()
        for replicas in numbers
    }
    chosen = {key: sampled(each, options.seed, 2 if options.quick else SAMPLE) for key, each in loads.items()}
    sizes = sorted({size for each in chosen.values() for size in each})
    if options.quick and len(sizes) > 3:
        sizes = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    cells = [(setting, size, options.seed, window) for size in sizes]
    fleets = dict(zip(sizes, run_cells("replicas", run, cells, options.jobs), strict=True))
    rows = {
        placement: {replicas: together(loads[placement, replicas], fleets) for replicas in numbers}
        for placement in PLACEMENTS
    }
    return {
        "per_replica": options.per_replica, "window_s": [window.begin, window.end], "simulated": sizes, "rows": rows,
        "fleets": {size: asdict(figures) for size, figures in fleets.items()},
    }  # fmt: skip


def together(loads: Sequence[int], fleets: Mapping[int, Figures]) -> dict[str, float]:
    """Return the figures of all replicas, each like the simulated fleet that is nearest in size.

    kept: robots that a load balancer could promise their speed: those on replicas with at most `ALLOWED` violations.
    """
    known = sorted(fleets)
    goodput = late = kept = 0.0
    for size, count in Counter(loads).items():
        figures = fleets[min(known, key=lambda each: abs(each - size))]
        goodput += count * figures.goodput * size / figures.robots
        late += count * size * figures.violations
        kept += count * size * (figures.violations <= ALLOWED)
    robots = sum(loads)
    return {
        "robots": robots, "fullest": max(loads), "goodput": goodput, "violations": late / robots, "kept": kept,
    }  # fmt: skip


COLUMNS = (
    Column("robots", "robots", ".0f"), Column("fullest", "fullest", ".0f"), Column("tokens/s", "goodput", ".0f"),
    Column("late %", "violations", ".2f", 100.0), Column("robots served in time", "kept", ".0f"),
)  # fmt: skip


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    simulated = ", ".join(map(str, data["simulated"]))
    parts = [
        f"many replicas, {data['per_replica']} robots each on average, policy full_budget, mixed classes, WISP's "
        f"Appendix C; simulated: single fleets of {simulated} robots; every replica is taken to be like the "
        "one that is nearest in size",
    ]
    for placement, rows in data["rows"].items():
        parts += [f"\n{placement}", figures_table("replicas", {str(n): row for n, row in rows.items()}, COLUMNS)]
    return "\n".join(parts)
