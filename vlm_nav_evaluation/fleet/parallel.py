"""Independent runs side by side, each in a process of its own; their order does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from speculation.progress import progress
from speculation.worker_processes import worker_pool

Found = TypeVar("Found")


def run_parallel(what: str, cell: Callable[..., Found], arguments: Sequence[tuple[Any, ...]], jobs: int) -> list[Found]:
    """Return `cell(*each)` of all arguments, in their order, with a progress bar named `what`."""
    bar: dict[str, Any] = {"total": len(arguments), "desc": what, "unit": "run"}
    if jobs == 1 or len(arguments) < 2:
        return [cell(*each) for each in progress(arguments, **bar)]
    with worker_pool(min(jobs, len(arguments)), [cell.__module__]) as pool:
        return list(progress(pool.map(cell, *zip(*arguments, strict=True)), **bar))
