"""A stopwatch for the parts of a step, by the wall and by the CPU of one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from edge_drafter.model import Clock


class Part(str, Enum):
    """Where a step's time goes. POLICY is what no other part claims.

    READ: the likeliest tokens and their probabilities, by the softmax and the predictor, read off the logits; any
    drafter does that. CACHE: commits of the draft model, which move keys and values. LINK: sending (encoding included)
    and receiving, waiting too. PACE: waiting for a declared forward's end.
    """

    POLICY = "policy"
    PREFILL = "prefill"
    FORWARD = "forward"
    READ = "read"
    CACHE = "cache"
    LINK = "link"
    PACE = "pace"


@dataclass(frozen=True)
class Seconds:
    """Time by the wall, and by the CPU of one thread."""

    wall: float = 0.0
    cpu: float = 0.0


class Stopwatch:
    """Splits time into parts without overlap: a part inside another one interrupts it.

    Reading a thread's CPU time is a system call, which costs as much as a bit of policy, and the kernel may switch
    threads there. So each change of parts reads wall, CPU, CPU, wall: by the wall nothing in between counts for any
    part, and what one CPU reading costs, which every part contains once, is measured and subtracted.
    """

    def __init__(self, wall: Clock = time.perf_counter, cpu: Clock = time.thread_time) -> None:
        self._wall = wall
        self._cpu = cpu
        self._inside: list[Part] = []
        self.single: list[Seconds] = []
        """Forwards of exactly one token since `restart`."""
        self.restart()

    def restart(self) -> None:
        """Begin again with POLICY."""
        self._spent = {part: [0.0, 0.0] for part in Part}
        self.single.clear()
        self._inside[:] = [Part.POLICY]
        self._since_cpu, self._since_wall = self._cpu(), self._wall()

    def spent(self, part: Part) -> Seconds:
        """Return what a part took so far, up to the last change of parts."""
        return Seconds(*self._spent[part])

    def enter(self, part: Part) -> None:
        """Count time for `part` until `leave`."""
        self._book()
        self._inside.append(part)

    def leave(self) -> None:
        """Count time again for the part that was interrupted."""
        self._book()
        self._inside.pop()

    def stop(self) -> dict[Part, Seconds]:
        """Return what all parts took until now."""
        self._book()
        return {part: self.spent(part) for part in Part}

    def _book(self) -> None:
        wall, cpu = self._wall(), self._cpu()
        again = self._cpu()
        spent = self._spent[self._inside[-1]]
        spent[0] += wall - self._since_wall
        spent[1] += (cpu - self._since_cpu) - (again - cpu)
        self._since_cpu, self._since_wall = again, self._wall()


def timed(watch: Stopwatch, part: Part, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with its time counted for `part`.

    Functions among its arguments, such as a forward's `stop`, are the policy's. A forward that ends is one of
    `Stopwatch.single` where its first argument is one token.
    """

    def call(*arguments: Any) -> Any:
        watch.enter(part)  # first, so that what follows is no policy
        before = watch.spent(part)
        try:
            result = function(*[timed(watch, Part.POLICY, each) if callable(each) else each for each in arguments])
        finally:
            watch.leave()
        if part is Part.FORWARD and len(arguments) > 2 and len(arguments[1]) == 1:
            after = watch.spent(part)
            watch.single.append(Seconds(after.wall - before.wall, after.cpu - before.cpu))
        return result

    return call


@contextmanager
def timing(watch: Stopwatch, part: Part, owner: Any, *names: str) -> Iterator[None]:
    """Count time inside these functions of a module, or methods of a class, for `part` while the context lasts."""
    before = {name: getattr(owner, name) for name in names}
    for name, function in before.items():
        setattr(owner, name, timed(watch, part, function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)
