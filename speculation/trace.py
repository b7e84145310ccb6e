"""Where the time of a step went: spans on lanes, written as Chrome / Perfetto JSON.

All spans are on one clock. What another machine did arrives as a duration and is drawn centred between the moments
at which this machine sent the question and received the answer: two machines' clocks are never subtracted.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Lane(str, Enum):
    """A row of the picture."""

    EDGE = "edge"
    LINK = "link"
    CLOUD = "cloud"


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `end`, seconds on the trace's clock."""

    name: str
    lane: Lane
    start: float
    end: float
    args: Mapping[str, object] = field(default_factory=dict)


def centred(sent: float, received: float, durations: Sequence[float]) -> list[tuple[float, float]]:
    """Place consecutive `durations` of the other side between `sent` and `received`, equal room before and after."""
    start = (sent + received - sum(durations)) / 2.0
    places = []
    for duration in durations:
        places.append((start, start + duration))
        start += duration
    return places


class Trace:
    """The most recent `limit` spans. Spans may be added from several threads."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, limit: int = 100_000) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}; give at least 1 span")
        self._clock = clock
        self._spans: deque[Span] = deque(maxlen=limit)

    @property
    def spans(self) -> list[Span]:
        """The spans so far, oldest first."""
        return list(self._spans)

    @contextmanager
    def span(self, name: str, lane: Lane = Lane.EDGE, **args: object) -> Iterator[None]:
        """Record the enclosed block, also when it raises."""
        start = self._clock()
        try:
            yield
        finally:
            self.add(name, lane, start, self._clock(), **args)

    def add(self, name: str, lane: Lane, start: float, end: float, **args: object) -> None:
        """Record something that is already over."""
        self._spans.append(Span(name, lane, start, end, args))

    def add_remote(
        self, sent: float, received: float, durations: Mapping[str, float], lane: Lane = Lane.CLOUD, **args: object
    ) -> None:
        """Record what the other side did, in order, between `sent` and `received`; zero durations are left out."""
        places = centred(sent, received, list(durations.values()))
        for (name, duration), (start, end) in zip(durations.items(), places, strict=True):
            if duration > 0.0:
                self.add(name, lane, start, end, **args)

    def write(self, path: Path) -> None:
        """Write a file for chrome://tracing or ui.perfetto.dev; the oldest span starts at 0."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"traceEvents": self._events(), "displayTimeUnit": "ms"}) + "\n", encoding="utf-8")

    def _events(self) -> list[dict[str, object]]:
        spans = self.spans
        origin = min((span.start for span in spans), default=0.0)
        rows = {lane: row for row, lane in enumerate(Lane, start=1)}
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": lane.value}}
            for lane, row in rows.items()
        ]
        for span in spans:
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "pid": 1,
                    "tid": rows[span.lane],
                    "ts": round((span.start - origin) * 1e6, 3),
                    "dur": round((span.end - span.start) * 1e6, 3),
                    "args": dict(span.args),
                }
            )
        return events
