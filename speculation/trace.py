"""Records where the time of a step went: spans on lanes, written as Chrome / Perfetto JSON and read back.

All spans are on one clock. What another machine did arrives as a duration and is placed between the moments at which
this machine sent the question and received the answer: two machines' clocks are never subtracted.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Lane(str, Enum):
    """A row of the timeline."""

    EDGE = "edge"
    LINK = "link"
    CLOUD = "cloud"


class Kind(str, Enum):
    """The names of a step's spans. EARLY, COMMIT and DECISION are moments, all others take time.

    EDGE: STEP (the whole request), PREFILL, DRAFT and PREDRAFT (one draft forward each), COMMIT, DECISION (what a body
    made of an answer). LINK: ROUND (a draft's way up to its commit's arrival), EARLY (an early token arrives).
    CLOUD: PREFILL, QUEUE, VERIFY, DECODE (a target forward without a draft).
    """

    STEP = "step"
    PREFILL = "prefill"
    DRAFT = "draft"
    PREDRAFT = "pre-draft"
    ROUND = "round"
    QUEUE = "queue"
    VERIFY = "verify"
    DECODE = "decode"
    EARLY = "early token"
    COMMIT = "commit"
    DECISION = "decision"


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `end`, seconds on the trace's clock; a `moment` has no duration at all."""

    name: str
    lane: Lane
    start: float
    end: float
    args: Mapping[str, object] = field(default_factory=dict)
    moment: bool = False


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

    def mark(self, name: str, lane: Lane, at: float | None = None, **args: object) -> None:
        """Record a moment, by default this one."""
        now = self._clock() if at is None else at
        self._spans.append(Span(name, lane, now, now, args, moment=True))

    def write(self, path: Path) -> None:
        """Write a file for chrome://tracing or ui.perfetto.dev; the oldest span starts at 0.

        Who reads `path` meanwhile sees the old file or the new one, never a part. Raises OSError.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        text = json.dumps({"traceEvents": _events(self.spans), "displayTimeUnit": "ms"})
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(path)


def load(path: Path) -> list[Span]:
    """Return the spans of a written trace, oldest first, in seconds. Raises ValueError if `path` is no such file."""
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        spans = [_span(event, Lane(names[event["tid"]])) for event in events if event["ph"] in ("X", "i")]
    except OSError as error:
        raise ValueError(f"the trace {path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is no trace of this project; the node's parameter `trace` writes one") from None
    return sorted(spans, key=lambda span: span.start)


def _span(event: Mapping[str, object], lane: Lane) -> Span:
    start, duration, args = event["ts"], event.get("dur", 0.0), event["args"]
    if not (isinstance(start, (int, float)) and isinstance(duration, (int, float)) and isinstance(args, dict)):
        raise ValueError("an event without a time")
    return Span(str(event["name"]), lane, start * 1e-6, (start + duration) * 1e-6, args, event["ph"] == "i")


def _events(spans: list[Span]) -> list[dict[str, object]]:
    origin = min((span.start for span in spans), default=0.0)
    rows = {lane: row for row, lane in enumerate(Lane, start=1)}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": lane.value}}
        for lane, row in rows.items()
    ]
    for span in spans:
        start = round((span.start - origin) * 1e6, 3)
        event: dict[str, object] = {"name": span.name, "pid": 1, "tid": rows[span.lane], "ts": start}
        if span.moment:
            event |= {"ph": "i", "s": "t"}
        else:
            event |= {"ph": "X", "dur": round((span.end - span.start) * 1e6, 3)}
        events.append({**event, "args": dict(span.args)})
    return events
