"""The processor: on which cores robot and verifier run where both are on one machine. Linux alone."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

OWN = Path("/proc/self/task")


class Cores(str, Enum):
    """A placement. FREE: where the system puts them, as in demos."""

    FREE = "free"
    ONE = "one"
    SPLIT = "split"

    def __str__(self) -> str:
        return self.value


def add_cores(line: argparse._ActionsContainer) -> None:
    """Register --cores."""
    text = "where edge and verifier run: free, both on one core, or split, each on half of them (default: free)"
    names = "{" + ",".join(map(str, Cores)) + "}"
    line.add_argument("--cores", type=Cores, choices=list(Cores), default=Cores.FREE, metavar=names, help=text)


def described(cores: Cores) -> str:
    """Return a placement in words. Raises ValueError where there are too few cores."""
    edge, verifier = (", ".join(map(str, sorted(each))) for each in _chosen(cores))
    if cores is Cores.SPLIT:
        return f"edge on core {edge}, verifier on core {verifier}"
    return f"edge and verifier share core {edge}"


@contextmanager
def placed(cores: Cores, *, verifier: bool = False) -> Iterator[None]:
    """Keep this process, and those that it starts, on the edge's cores or on the `verifier`'s for the time.

    Raises ValueError where there are too few cores.
    """
    before, chosen = os.sched_getaffinity(0), _chosen(cores)
    if cores is not Cores.FREE:
        _move(chosen[verifier])
    try:
        yield
    finally:
        _move(before)


def _chosen(cores: Cores) -> tuple[set[int], set[int]]:
    """Return the edge's cores and the verifier's."""
    usable = sorted(os.sched_getaffinity(0))
    if cores is not Cores.SPLIT:
        both = set(usable if cores is Cores.FREE else usable[:1])
        return both, both
    if len(usable) < 2:
        raise ValueError("--cores split needs two cores, this process may use one")
    half = len(usable) // 2
    return set(usable[:half]), set(usable[half:])


def _move(cores: set[int]) -> None:
    # All threads: those that a library has started would stay where they are.
    for thread in OWN.iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)
