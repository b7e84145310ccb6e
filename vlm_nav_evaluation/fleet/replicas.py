"""Up to 10,000 robots on many verifiers: where robots are placed, and how many replicas a promised speed needs.

Every replica has a scheduler of its own and they share nothing, so that a replica is a fleet by itself. Fleets of a
few sizes are simulated; what others do lies between their neighbours. A placement makes fleets of many sizes, and the
fullest of them is late first: that is what placements differ in. A request's robot stays on its replica: its keys and
values are there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from cloud_verifier.cluster.ring import Ring
from vlm_nav_evaluation.fleet.cells import run_cells
from vlm_nav_evaluation.fleet.figures import Figures, Window, run
from vlm_nav_evaluation.fleet.systems import Setting
from vlm_nav_evaluation.fleet.wisp import CLASSES, QUICK, systems, times_of
from vlm_nav_evaluation.fleet.workload import Workload
from vlm_nav_evaluation.tables import Column, figures_table

REPLICAS = (1, 2, 4, 8, 16, 32, 64, 100)
PER_REPLICA = 100
BOUND = 1.05
"""A replica takes at most so many times its mean share."""
SIZES = (0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 2.0, 2.4, 2.7, 3.0, 3.4)
"""Fleets that are simulated, as shares of the mean; the fullest replica of every row is simulated, too."""
ALLOWED = 0.01
"""Share of requests that may be too slow for a fleet to be within its capacity (WISP, Eq. 20)."""


def placed_by_hash(robots: int, replicas: int, bound: float | None = BOUND, seed: int = 0) -> list[int]:
    """Return the robots on each replica: consistent hashing, with bounded loads (Mirrokni et al., arXiv 1608.01350).

    A robot goes to the first replica clockwise of it that has room; `bound` None: to the first. Raises ValueError for a
    bound below 1, which has no room for all.
    """
    if bound is not None and bound < 1.0:
        raise ValueError(f"bound {bound} is below 1: not all robots find room")
    ring, loads = Ring(f"{seed} replica {replica}" for replica in range(replicas)), Counter[str]()
    most = robots if bound is None else int(np.ceil(bound * robots / replicas))
    for robot in range(robots):
        loads[next(name for name in ring.clockwise(f"{seed} robot {robot}") if loads[name] < most)] += 1
    return [loads[f"{seed} replica {replica}"] for replica in range(replicas)]


def placed_least_loaded(robots: int, replicas: int) -> list[int]:
    """Return the robots on each replica if each goes to the one with the fewest."""
    return [robots // replicas + (replica < robots % replicas) for replica in range(replicas)]


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
    per_replica, seed = options.per_replica, options.seed
    fullest = max(max(place(per_replica * number, number, seed)) for place in PLACEMENTS.values() for number in numbers)
    sizes = sorted({fullest, *(max(1, round(share * per_replica)) for share in shares)})
    cells = [(setting, size, seed, window) for size in sizes]
    fleets = dict(zip(sizes, run_cells("replicas", run, cells, options.jobs), strict=True))

    def placed(placement: str, replicas: int, mean: int) -> dict[str, float] | None:
        loads = PLACEMENTS[placement](mean * replicas, replicas, seed)
        return together(loads, fleets) if max(loads) <= sizes[-1] else None

    def row(placement: str, replicas: int) -> dict[str, Any]:
        mean, at_least = capacity_of(partial(placed, placement, replicas), means)
        found = together(PLACEMENTS[placement](per_replica * replicas, replicas, seed), fleets)
        return found | {"capacity": replicas * mean, "capacity_is_more": at_least}

    def load(placement: str) -> Iterator[tuple[int, dict[str, float]]]:
        for mean in means[:: 1 if options.quick else 5]:
            found = placed(placement, numbers[-1], mean)
            if found is None:
                return
            yield mean, found

    means = range(sizes[0], sizes[-1] + 1, 10 if options.quick else 2)
    return {
        "per_replica": per_replica, "window_s": [window.begin, window.end], "simulated": sizes,
        "fleets": {size: asdict(figures) for size, figures in fleets.items()},
        "rows": {placement: {replicas: row(placement, replicas) for replicas in numbers} for placement in PLACEMENTS},
        "load": {placement: dict(load(placement)) for placement in PLACEMENTS},
    }  # fmt: skip


def capacity_of(placed: Callable[[int], Mapping[str, float] | None], means: Sequence[int]) -> tuple[int, bool]:
    """Return the largest mean number of robots a replica with at most `ALLOWED` violations; 0 if there is none.

    placed: the figures at a mean; None where the fullest replica has more robots than were simulated. The second value
    is whether the mean is the largest that has figures: the capacity may be more.
    """
    fuller = True
    for mean in reversed(means):
        row = placed(mean)
        if row is not None:
            if row["violations"] <= ALLOWED:
                return mean, fuller
            fuller = False
    return 0, False


def together(loads: Sequence[int], fleets: Mapping[int, Figures]) -> dict[str, float]:
    """Return the figures of all replicas, each between the simulated fleets that are nearest in size.

    One with fewer robots than any fleet does by the robot what the smallest does. Raises ValueError for one with more
    than the largest.
    """
    known = sorted(fleets)
    if max(loads) > known[-1]:
        raise ValueError(f"a replica of {max(loads)} robots: fleets of at most {known[-1]} were simulated")
    every = np.array(loads, dtype=float)
    speeds = np.interp(every, known, [fleets[size].goodput / size for size in known])
    late = np.interp(every, known, [fleets[size].violations for size in known])
    return {
        "robots": float(every.sum()), "fullest": float(every.max()), "goodput": float(speeds @ every),
        "violations": float(late @ every / every.sum()),
    }  # fmt: skip


COLUMNS = (
    Column("robots", "robots", ".0f"), Column("fullest", "fullest", ".0f"), Column("tokens/s", "goodput", ".0f"),
    Column("late %", "violations", ".2f", 100.0), Column("capacity", "most"),
)  # fmt: skip


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    simulated = ", ".join(map(str, data["simulated"]))
    parts = [
        f"many replicas, {data['per_replica']} robots each on average, policy full_budget, mixed classes, WISP's "
        f"Appendix C; simulated: single fleets of {simulated} robots; capacity: most robots of which at most "
        f"{ALLOWED:.0%} are too slow, one seed; >= where a larger fleet has replicas fuller than those simulated",
    ]
    for placement, rows in data["rows"].items():
        shown = {
            str(number): row | {"most": f"{'>= ' if row['capacity_is_more'] else ''}{row['capacity']}"}
            for number, row in rows.items()
        }
        parts += [f"\n{placement}", figures_table("replicas", shown, COLUMNS)]
    return "\n".join(parts)
