"""A stopwatch around a draft model and a link: which part of a step takes how long, by the wall and by the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from edge_drafter import DraftModel
from edge_drafter.protocols import Clock, Link
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.wire import AnyMessage


class Part(str, Enum):
    """Where a step's time goes. POLICY is what no other part claims.

    READ: the likeliest tokens and their chances, by the softmax and the predictor, read off the logits; any drafter
    does that. CACHE: commits of the draft model, which move keys and values. LINK: sending (encoding included) and
    listening, waiting too. PACE: waiting for a declared forward's end.
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

    Reading a thread's CPU time is a system call, which costs as much as a bit of policy, and the kernel likes to change
    threads there. So each change of parts reads wall, CPU, CPU, wall: by the wall nothing in between counts for any
    part, and what one CPU reading costs, which every part contains once, is known and taken off.
    """

    def __init__(self, wall: Clock = time.perf_counter, cpu: Clock = time.thread_time) -> None:
        self._wall = wall
        self._cpu = cpu
        self._inside: list[Part] = []
        self.restart()

    def restart(self) -> None:
        """Begin again with POLICY."""
        self._spent = {part: [0.0, 0.0] for part in Part}
        self._inside[:] = [Part.POLICY]
        self._since_cpu, self._since_wall = self._cpu(), self._wall()

    def spent(self, part: Part) -> Seconds:
        """Return what a part took so far, up to the last change of parts."""
        return Seconds(*self._spent[part])

    def enter(self, part: Part) -> None:
        """Let time count for `part` until `leave`."""
        self._book()
        self._inside.append(part)

    def leave(self) -> None:
        """Let time count again for the part that was interrupted."""
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


@contextmanager
def timing(watch: Stopwatch, part: Part, module: ModuleType, *names: str) -> Iterator[None]:
    """Let time inside these functions of a module count for `part`, as long as the context lasts."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            watch.enter(part)
            try:
                return function(*arguments)
            finally:
                watch.leave()

        return call

    before = {name: getattr(module, name) for name in names}
    for name, function in before.items():
        setattr(module, name, timed(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


class TimedModel:
    """A `DraftModel` on a stopwatch; what its `stop` does is the policy's. `single`: forwards of exactly one token."""

    def __init__(self, model: DraftModel, watch: Stopwatch, part: Part = Part.FORWARD) -> None:
        self._model = model
        self._watch = watch
        self._part = part
        self.single: list[Seconds] = []

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = ()) -> None:
        """See `DraftModel.begin`."""
        self._watch.enter(Part.PREFILL)
        try:
            self._model.begin(prompt, image, committed)
        finally:
            self._watch.leave()

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """See `DraftModel.root_logits`; it may be a forward over several committed tokens, so it is never `single`."""
        self._watch.enter(self._part)
        try:
            return self._model.root_logits(self._asked(stop))
        finally:
            self._watch.leave()

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """See `DraftModel.extend`."""
        before = self._watch.spent(self._part)
        self._watch.enter(self._part)
        try:
            logits = self._model.extend(tokens, parents, self._asked(stop))
        finally:
            self._watch.leave()
        if len(tokens) == 1:
            after = self._watch.spent(self._part)
            self.single.append(Seconds(after.wall - before.wall, after.cpu - before.cpu))
        return logits

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """See `DraftModel.commit`."""
        self._watch.enter(Part.CACHE)
        try:
            return self._model.commit(path, next_token)
        finally:
            self._watch.leave()

    def _asked(self, stop: Stop | None) -> Stop | None:
        if stop is None:
            return None
        asked: Callable[[], bool] = stop

        def timed() -> bool:
            self._watch.enter(Part.POLICY)
            try:
                return asked()
            finally:
                self._watch.leave()

        return timed


class TimedLink:
    """A `Link` on a stopwatch."""

    def __init__(self, link: Link, watch: Stopwatch) -> None:
        self._link = link
        self._watch = watch

    @property
    def bytes_up(self) -> int:
        """See `Link.bytes_up`."""
        return self._link.bytes_up

    @property
    def bytes_down(self) -> int:
        """See `Link.bytes_down`."""
        return self._link.bytes_down

    def send(self, message: AnyMessage) -> None:
        """See `Link.send`."""
        self._watch.enter(Part.LINK)
        try:
            self._link.send(message)
        finally:
            self._watch.leave()

    def receive(self, timeout: float) -> AnyMessage | None:
        """See `Link.receive`."""
        self._watch.enter(Part.LINK)
        try:
            return self._link.receive(timeout)
        finally:
            self._watch.leave()
