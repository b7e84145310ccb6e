"""Independent runs side by side, each in a process of its own; their order does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from speculation.worker_processes import worker_pool

Found = TypeVar("Found")


def run_parallel(work: Callable[..., Found], jobs: Sequence[tuple[Any, ...]], processes: int) -> Iterator[Found]:
    """Yield `work(*job)` of every job, in their order, from this process or from several that have its module."""
    if processes == 1 or len(jobs) < 2:
        yield from (work(*job) for job in jobs)
        return
    with worker_pool(min(processes, len(jobs)), [work.__module__]) as pool:
        yield from pool.map(work, *zip(*jobs, strict=True))
