"""Preparation: frames are decoded beside the server's loop, so that none of them holds the other robots up.

One job a session at a time; a newer one takes the place of one that waits. How long a job may take is bounded by what
it calls (`speculation.vlm.processing.decode_jpeg`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from cloud_verifier.step import StepState
from speculation.wire import BeginStep

THREADS = 2
"""A frame that is slow to decode leaves one for the other robots."""

Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Prepared(Generic[Inputs]):
    """What became of a step's prompt and frame: `inputs`, or the `error` that refuses them; `seconds` it took."""

    row: int
    state: StepState
    inputs: Inputs | None
    error: Exception | None
    seconds: float


class Preparation(Generic[Inputs]):
    """Runs `prepare` in `threads` threads and calls `done` after each job.

    0 threads, for a `clock` that is not the machine's: at once, in the caller's.
    """

    def __init__(
        self,
        prepare: Callable[[BeginStep], Inputs],
        done: Callable[[], None] = lambda: None,
        threads: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepare, self._done, self._clock = prepare, done, clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prepare") if threads else None
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[StepState, BeginStep]] = {}
        self._running: set[int] = set()
        self._finished: list[Prepared[Inputs]] = []

    def submit(self, row: int, state: StepState, begin: BeginStep) -> None:
        """Prepare a session's new step."""
        with self._lock:
            self._waiting[row] = (state, begin)
            if row in self._running:
                return
            self._running.add(row)
        if self._pool is None:
            self._run(row)
        else:
            self._pool.submit(self._run, row)

    def collect(self) -> list[Prepared[Inputs]]:
        """Return what was finished since the last call."""
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Begin nothing any more; jobs under way end by themselves."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, row: int) -> None:
        with self._lock:
            state, begin = self._waiting.pop(row)
        started = self._clock()
        inputs: Inputs | None = None
        error: Exception | None = None
        try:
            inputs = self._prepare(begin)
        except Exception as problem:
            error = problem
        seconds = self._clock() - started
        with self._lock:
            self._finished.append(Prepared(row, state, inputs, error, seconds))
            again = row in self._waiting
            if not again:
                self._running.discard(row)
        self._done()
        if again and self._pool is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._pool.submit(self._run, row)  # behind the other sessions' jobs
