"""Decodes frames in threads beside the server's loop, so that no frame delays it.

A job, once begun, runs to its end: a JPEG is decoded in a bounded time (`speculation.frames.decode_jpeg`), and
what follows grows with its pixels, which are bounded too. So a session whose frames are slow must not be first again:
the session that used least of the threads' time of late goes first, one job a session at a time. A newer step takes the
place of one that waits.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cloud_verifier.limits import DecayingSum
from cloud_verifier.step import Step
from speculation.wire import BeginStep

THREADS = 2
"""While one decodes a slow frame, the other is there for the other robots."""
FORGET_S = 5.0
"""Thread time that a session used so long ago counts half."""


@dataclass(frozen=True)
class Prepared:
    """A prepared step has what became of its prompt and frame: `inputs`, or the `error` that refuses them."""

    step: Step
    inputs: Any
    error: Exception | None
    seconds: float


class ImageDecoding:
    """Runs `prepare` in `threads` threads and calls `done` after each job.

    0 threads, for a `clock` that is not the machine's: at once, in the caller's.
    """

    def __init__(
        self,
        prepare: Callable[[BeginStep], Any],
        done: Callable[[], None] = lambda: None,
        threads: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepare, self._done, self._clock = prepare, done, clock
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Step, BeginStep]] = {}
        self._running: set[int] = set()
        self._used = defaultdict[int, DecayingSum](lambda: DecayingSum(FORGET_S))
        self._finished: list[Prepared] = []
        self._pool = ThreadPoolExecutor(threads, "prepare") if threads else None

    def submit(self, step: Step, begin: BeginStep) -> None:
        """Prepare a session's new step."""
        with self._lock:
            self._waiting.pop(step.index, None)
            self._waiting[step.index] = (step, begin)
        if self._pool is None:
            self._work()
        else:
            self._pool.submit(self._work)

    def collect(self) -> list[Prepared]:
        """Return what was finished since the last call."""
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Begin nothing any more; the process ends after the jobs under way, for which frames have a limit of time."""
        with self._lock:
            self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _work(self) -> None:
        """Do jobs as long as a session has one, and none under way."""
        while (job := self._next()) is not None:
            step, begin = job
            started, inputs, error = self._clock(), None, None
            try:
                inputs = self._prepare(begin)
            except Exception as problem:
                error = problem
            now = self._clock()
            with self._lock:
                self._used[step.index].add(now - started, now)
                self._finished.append(Prepared(step, inputs, error, now - started))
                self._running.discard(step.index)
            self._done()

    def _next(self) -> tuple[Step, BeginStep] | None:
        with self._lock:
            now = self._clock()
            free = [index for index in self._waiting if index not in self._running]
            if not free:
                return None
            index = min(free, key=lambda index: self._used[index].now(now))
            self._running.add(index)
            return self._waiting.pop(index)
