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
from dataclasses import dataclass
from typing import Generic, TypeVar

from cloud_verifier.limits import DecayingSum
from cloud_verifier.step import Step
from speculation.wire import BeginStep

THREADS = 2
"""While one decodes a slow frame, the other is there for the other robots."""
FORGET_S = 5.0
"""Thread time that a session used so long ago counts half."""

Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Prepared(Generic[Inputs]):
    """A prepared step has what became of its prompt and frame: `inputs`, or the `error` that refuses them."""

    step: Step
    inputs: Inputs | None
    error: Exception | None
    seconds: float


class ImageDecoding(Generic[Inputs]):
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
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[Step, BeginStep]] = {}
        self._running: set[int] = set()
        self._used = defaultdict[int, DecayingSum](lambda: DecayingSum(FORGET_S))
        self._finished: list[Prepared[Inputs]] = []
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"prepare {number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, step: Step, begin: BeginStep) -> None:
        """Prepare a session's new step."""
        with self._changed:
            self._waiting.pop(step.index, None)
            self._waiting[step.index] = (step, begin)
            self._changed.notify()
        if not self._threads:
            self._run(step.index)

    def collect(self) -> list[Prepared[Inputs]]:
        """Return what was finished since the last call."""
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Begin nothing any more; jobs under way end by themselves."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _serve(self) -> None:
        while (index := self._next()) is not None:
            self._run(index)

    def _next(self) -> int | None:
        """Wait for a session that has a job and none under way; None at the end."""
        with self._changed:
            while True:
                free = [index for index in self._waiting if index not in self._running]
                if free or self._closed:
                    now = self._clock()
                    return min(free, key=lambda index: self._used[index].now(now), default=None)
                self._changed.wait()

    def _run(self, index: int) -> None:
        with self._changed:
            if index not in self._waiting or index in self._running:
                return
            step, begin = self._waiting.pop(index)
            self._running.add(index)
        started = self._clock()
        inputs: Inputs | None = None
        error: Exception | None = None
        try:
            inputs = self._prepare(begin)
        except Exception as problem:
            error = problem
        now = self._clock()
        with self._changed:
            self._used[index].add(now - started, now)
            self._finished.append(Prepared(step, inputs, error, now - started))
            self._running.discard(index)
            self._changed.notify()
        self._done()
