"""Model work in a thread of its own, while the thread that decodes goes on taking messages.

A prefill is one long piece of work, and on an accelerator its layers are only queued, so that the wait for all of them
falls on whoever asks for their outcome. A commit must not wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from speculation.cancellation import Stop

T = TypeVar("T")
LOOK_S = 0.002
"""How often the caller looks for messages meanwhile, seconds."""
CROWDED, LEAST_S = 0.3, 0.003
"""A processor is shared where this share of the time, and so many seconds, went by in its queue. So many seconds are
a turn of another process: a thread that is woken late once does not share its processor."""
QUEUE = Path("/proc/thread-self/schedstat")


def queued_s() -> float:
    """Return how long this thread has waited for a processor so far, seconds; 0 where the system does not count it."""
    try:
        return int(QUEUE.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


class Background:
    """Runs one piece of work at a time."""

    def __init__(self) -> None:
        self.yields = False
        """Whether it leaves a processor that it has to share to others, see `run`.

        That is for a verifier on the same machine: the answer's first token waits for the verifier's prefill alone. The
        verifier names its machine itself, see `speculation.machine_info`; whether both meet on one processor is
        measured.
        """
        self.crowded = False
        """Whether the latest work had to share its processor; known of work that yields."""
        self._worker = ThreadPoolExecutor(1, "prefill")
        self._go = threading.Event()

    def run(self, work: Callable[[Stop], T], look: Stop) -> T:
        """Return what `work` returns, or raise what it raises; never before it has ended.

        `look` is called in the caller's thread, at once and every `LOOK_S` seconds. Once it returns True, or raises
        (which is then raised here), the `Stop` that `work` was given returns True. Where work that yields finds its
        processor shared, it stands still from its next call of that `Stop` until `hurry`.
        """
        self.crowded = False
        self._go.clear()
        unwanted = threading.Event()
        future = self._worker.submit(self._work, work, unwanted)
        try:
            while not look() and not wait((future,), LOOK_S).done:
                pass
        finally:
            if not future.done():
                unwanted.set()
                self._go.set()
                wait((future,))
        return future.result()

    def hurry(self) -> None:
        """Let the work under way take its share of a processor from now on."""
        self._go.set()

    def close(self) -> None:
        """End the thread, after the work under way; safe to repeat."""
        self._worker.shutdown()

    def _work(self, work: Callable[[Stop], T], unwanted: threading.Event) -> T:
        began, queued = time.perf_counter(), queued_s()

        def stop() -> bool:
            if self.yields and not self._go.is_set():
                waited, passed = queued_s() - queued, time.perf_counter() - began
                self.crowded = self.crowded or waited > max(LEAST_S, CROWDED * passed)
                if self.crowded:
                    self._go.wait()
            return unwanted.is_set()

        return work(stop)
