"""Spans of steps and of the models' work in the verifier's trace."""

from __future__ import annotations

from cloud_verifier.events import Ended, Event, Prefilled, Worked
from speculation.trace import Lane, Trace


class Spans:
    """Enters what happens into a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def take(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Worked) and event.about:
            self._trace.add(event.kind, Lane.CLOUD, event.start, event.now, **event.about)
        elif isinstance(event, Prefilled) and event.tokens:
            about = {"step": event.step.number, "tokens": event.tokens}
            self._trace.add("prefill", Lane.CLOUD, event.start, event.now, **about)
        elif isinstance(event, Ended) and event.session is not None:
            step = event.step
            about = {"session": event.session.number, "step": step.number, "tokens": step.usage.tokens}
            self._trace.add("step", Lane.CLOUD, step.begun_at, event.now, **about)
