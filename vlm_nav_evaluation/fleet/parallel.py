"""Independent runs side by side, each in a process of its own; their order does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from speculation.processes import worker_pool
from speculation.progress import progress

Found = TypeVar("Found")


def run_parallel(what: str, cell: Callable[..., Found], arguments: Sequence[tuple[Any, ...]], jobs: int) -> list[Found]:
    """Return `cell(*each)` of all arguments, in their order, with a progress bar named `what`."""
    calls = [(cell, each) for each in arguments]
    bar = progress(total=len(calls), desc=what, unit="run")
    with bar:
        if jobs == 1 or len(calls) < 2:
            return [_counted(bar, _call(call)) for call in calls]
        with worker_pool(min(jobs, len(calls)), [__name__]) as pool:
            return [_counted(bar, found) for found in pool.map(_call, calls)]


def _call(call: tuple[Callable[..., Found], tuple[Any, ...]]) -> Found:
    cell, arguments = call
    return cell(*arguments)


def _counted(bar: Any, found: Found) -> Found:
    bar.update()
    return found
