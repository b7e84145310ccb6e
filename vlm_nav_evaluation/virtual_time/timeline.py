"""Virtual time: tasks that sleep, and events that run when they are due. No threads, no real clock.

Edges and verifiers of the evaluation run on it, so do the fleet, the fuzzers and tests of the scheduler. Every task is
a greenlet. One that sleeps takes the next events off the heap by itself and switches straight to the task that one of
them wakes; there is no hub in between. Events of one moment run in the order in which they were planned, so that two
runs are equal to the last bit.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from greenlet import getcurrent, greenlet

Action = Callable[[], None]
Item = TypeVar("Item")
MOST_EVENTS_PER_MOMENT = 100_000
"""Checks and events within one moment after which a task is taken to loop without waiting."""


class Stalled(RuntimeError):
    """Virtual time does not go on: nothing is planned and a task still waits, or a task polls without waiting."""


class Killed(BaseException):
    """The task was killed, as a process may be: nothing in it may catch this."""


class Timeline:
    """The clock, in seconds from 0, and the planned events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Any]] = []
        self._cancelled: set[int] = set()
        self._planned = 0
        self._count_now = 0
        self._alarms: dict[Any, int] = {}
        """Events that wake the tasks that wait."""
        self._killed: set[Any] = set()
        self._tasks: list[Any] = []

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def at(self, when: float, what: Action) -> int:
        """Plan an action, which must not sleep, or a task's waking, for now or later; return the event's number."""
        self._planned += 1
        heapq.heappush(self._events, (when, self._planned, what))
        return self._planned

    def cancel(self, number: int) -> None:
        """Cancel the event `number`, which has not run yet."""
        self._cancelled.add(number)

    def clear(self) -> None:
        """Cancel all that is planned."""
        self._events.clear()
        self._cancelled.clear()

    @property
    def due(self) -> float:
        """Return when the next event is planned; infinite for none."""
        return self._events[0][0] if self._events else math.inf

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass for the task that calls. Raises Killed."""
        if seconds > 0.0:
            self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Let the task that calls wait until it is woken, at most so many seconds. Raises Killed."""
        me = getcurrent()
        self.check()
        self._alarms[me] = self.at(self.now + max(0.0, seconds), me)
        self.pass_on(me)
        self._alarms.pop(me, None)
        self.check()

    def wake(self, task: Any) -> None:
        """Let a task that waits go on now."""
        alarm = self._alarms.pop(task, None)
        if alarm is not None:
            self.cancel(alarm)
            self.at(self.now, task)

    def kill(self, task: Any) -> None:
        """Let a task end where it stands: it learns of it when it next waits or looks."""
        if not task.dead:
            self._killed.add(task)
            self.wake(task)

    def check(self) -> None:
        """Raise Killed where the task that calls was."""
        if self._killed and getcurrent() in self._killed:
            self._killed.discard(getcurrent())
            raise Killed

    def start(self, task: Action) -> Any:
        """Begin one more task, from within `run`, and return it; what kills it ends it alone."""

        def mortal() -> None:
            with contextlib.suppress(Killed):
                task()

        self._tasks.append(greenlet(mortal, getcurrent().parent))
        self.at(self.now, self._tasks[-1])
        return self._tasks[-1]

    def run_due(self) -> None:
        """Run the events that are due now, without waiting. Raises Stalled for a task that only ever does this."""
        events = self._events
        while events and events[0][0] <= self.now and not isinstance(events[0][2], greenlet):
            _, number, action = heapq.heappop(events)
            if number in self._cancelled:
                self._cancelled.discard(number)
            else:
                action()
        self._count()

    def advance(self, until: float, wanted: Callable[[], bool] = lambda: True) -> None:
        """Run the actions that are due up to a moment, or until `wanted`, asked before each, is over; no task runs."""
        while self.due <= until and wanted():
            when, number, action = heapq.heappop(self._events)
            self.now = max(self.now, when)
            if number in self._cancelled:
                self._cancelled.discard(number)
            else:
                action()

    def run(self, tasks: Sequence[Action], services: Sequence[Action] = ()) -> None:
        """Run tasks until all are over, and beside them `services`, which are ended then.

        Raises what a task or a service raises, and Stalled.
        """
        me = getcurrent()
        left = len(tasks)

        def counted(task: Action) -> None:
            nonlocal left
            task()
            left -= 1

        self._tasks = [greenlet(each, me) for each in services]
        self._tasks += [greenlet(lambda task=task: counted(task), me) for task in tasks]
        for each in self._tasks:
            self.at(self.now, each)
        try:
            while left:
                self.pass_on(me)
        finally:
            for each in self._tasks:
                if not each.dead:
                    each.throw()
            self._events = [event for event in self._events if event[2] not in self._tasks]
            heapq.heapify(self._events)

    def pass_on(self, me: Any) -> None:
        """Let time go on until the task `me`, which calls, is woken by an event that it has planned."""
        events = self._events
        while events:
            when, number, what = heapq.heappop(events)
            if number in self._cancelled:
                self._cancelled.discard(number)
                continue
            if when > self.now:
                self.now = when
                self._count_now = 0
            if what is me:
                return
            if isinstance(what, greenlet):
                what.switch()
                return
            self._count()
            what()
        raise Stalled("no event is planned, and a task still waits")

    def _count(self) -> None:
        self._count_now += 1
        if self._count_now > MOST_EVENTS_PER_MOMENT:
            raise Stalled(f"at {self.now:.6f} s a task polls without waiting")


class Inbox(Generic[Item]):
    """Messages that have arrived for one task, in order; the task may wait for more."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._items: deque[Item] = deque()
        self._waiter: Any = None

    def put(self, item: Item) -> None:
        """Add an item and wake the task that waits for it."""
        self._items.append(item)
        self.notify()

    def notify(self) -> None:
        """Let the task that waits go on, whatever has arrived."""
        if self._waiter is not None:
            self._timeline.wake(self._waiter)

    def take(self) -> Item | None:
        """Return the oldest item, None where there is none."""
        self._timeline.run_due()
        return self._items.popleft() if self._items else None

    def wait(self, seconds: float) -> None:
        """Return when an item is there, or after `seconds`."""
        if self._items or seconds <= 0.0:
            return
        self._waiter = getcurrent()
        try:
            self._timeline.wait(seconds)
        finally:
            self._waiter = None

    def __len__(self) -> int:
        """Return how many items wait to be taken."""
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """Return the items that wait to be taken."""
        return iter(self._items)

    def clear(self) -> None:
        """Drop all items."""
        self._items.clear()
