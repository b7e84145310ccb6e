"""Up to 10,000 robots on many verifiers: where robots are placed, and how many replicas a promised speed needs.

Every replica has a scheduler of its own and they share nothing, so that a replica is a fleet by itself. Fleets of a
few sizes are simulated; what others do lies between their neighbours. A placement makes fleets of many sizes, and the
fullest of them is late first: that is what placements differ in. A request's robot stays on its replica: its keys and
values are there.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
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
SIZES = (0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 2.0, 2.4)
"""Fleets that are simulated, as shares of the mean."""
ALLOWED = 0.01
"""Share of requests that may be too slow for a fleet to be within its capacity (WISP, Eq. 20)."""


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
    shares = (SIZES[0], 1.0, SIZES[-1]) if options.quick else SIZES
    sizes = sorted({max(1, round(share * options.per_replica)) for share in shares})
    cells = [(setting, size, options.seed, window) for size in sizes]
    fleets = dict(zip(sizes, run_cells("replicas", run, cells, options.jobs), strict=True))

    def placed(placement: str, replicas: int, per_replica: int) -> dict[str, float]:
        return together(PLACEMENTS[placement](per_replica * replicas, replicas, options.seed), fleets)

    means = range(sizes[0], sizes[-1] + 1, 10 if options.quick else 2)
    return {
        "per_replica": options.per_replica, "window_s": [window.begin, window.end], "simulated": sizes,
        "fleets": {size: asdict(figures) for size, figures in fleets.items()},
        "rows": {
            placement: {
                replicas: placed(placement, replicas, options.per_replica)
                | {"capacity": replicas * capacity_of(partial(placed, placement, replicas), means)}
                for replicas in numbers
            }
            for placement in PLACEMENTS
        },
        "load": {
            placement: {mean: placed(placement, numbers[-1], mean) for mean in means[:: 1 if options.quick else 5]}
            for placement in PLACEMENTS
        },
    }  # fmt: skip


def capacity_of(placed: Callable[[int], Mapping[str, float]], means: Sequence[int]) -> int:
    """Return the largest mean number of robots a replica with at most `ALLOWED` violations; 0 if there is none."""
    return next((mean for mean in reversed(means) if placed(mean)["violations"] <= ALLOWED), 0)


def together(loads: Sequence[int], fleets: Mapping[int, Figures]) -> dict[str, float]:
    """Return the figures of all replicas, each between the simulated fleets that are nearest in size."""
    known = sorted(fleets)
    every = np.array(loads, dtype=float)
    speeds = np.interp(every, known, [fleets[size].goodput / size for size in known])
    late = np.interp(every, known, [fleets[size].violations for size in known])
    return {
        "robots": float(every.sum()), "fullest": float(every.max()), "goodput": float(speeds @ every),
        "violations": float(late @ every / every.sum()),
    }  # fmt: skip


COLUMNS = (
    Column("robots", "robots", ".0f"), Column("fullest", "fullest", ".0f"), Column("tokens/s", "goodput", ".0f"),
    Column("late %", "violations", ".2f", 100.0), Column("capacity", "capacity", ".0f"),
)  # fmt: skip


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    simulated = ", ".join(map(str, data["simulated"]))
    parts = [
        f"many replicas, {data['per_replica']} robots each on average, policy full_budget, mixed classes, WISP's "
        f"Appendix C; simulated: single fleets of {simulated} robots; capacity: most robots of which at most "
        f"{ALLOWED:.0%} are too slow",
    ]
    for placement, rows in data["rows"].items():
        parts += [f"\n{placement}", figures_table("replicas", {str(n): row for n, row in rows.items()}, COLUMNS)]
    return "\n".join(parts)
